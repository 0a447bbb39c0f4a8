//! The additions of RFC 8881.

use super::*;

pub fn seeds() -> Vec<Seed> {
    [clients(), sessions(), connections(), stateids(), delegations(), devices(), layouts()].concat()
}

fn impl_id() -> NfsImplId {
    NfsImplId {
        domain: text("example.net"),
        name: text("leasehold"),
        date: Nfstime { seconds: -1, nseconds: 5 },
    }
}

const IMPL_ID: &str = "1 \"example.net\" \"leasehold\" =ffffffffffffffff 5";

fn clients() -> Vec<Seed> {
    let exchange = |state_protect, client_impl_id| {
        ArgOp::ExchangeId(ExchangeIdArgs {
            clientowner: ClientOwner { verifier: VERIFIER, ownerid: text("client") },
            flags: EXCHGID4_FLAG_BIND_PRINC_STATEID | EXCHGID4_FLAG_SUPP_MOVED_REFER,
            state_protect,
            client_impl_id,
        })
    };
    let ops = StateProtectOps {
        must_enforce: Bitmap::EMPTY.with_bit(Operation::ExchangeId as u32),
        must_allow: Bitmap::EMPTY.with_bit(Operation::Close as u32),
    };
    let oid = |bytes: &'static [u8]| SecOid::new(bytes).unwrap();
    let parms = SsvSpParms {
        ops,
        hash_algs: list(vec![oid(&[0x60]), oid(&[0x61, 0x62])]),
        encr_algs: list(vec![oid(&[0x63])]),
        window: 4,
        num_gss_handles: 2,
    };
    let info = SsvProtInfo {
        ops,
        hash_alg: 1,
        encr_alg: 0,
        ssv_len: 32,
        window: 4,
        handles: list(vec![text("gss1")]),
    };
    let exchanged = |state_protect, server_impl_id| {
        ResOp::ExchangeId(Ok(ExchangeIdOk {
            clientid: 7,
            sequenceid: 1,
            flags: EXCHGID4_FLAG_CONFIRMED_R | EXCHGID4_FLAG_USE_NON_PNFS,
            state_protect,
            server_owner: ServerOwner { minor_id: 2, major_id: text("server") },
            server_scope: text("scope"),
            server_impl_id,
        }))
    };
    let front = format!("{V} \"client\" 257");
    let server = "q2 \"server\" \"scope\"";
    vec![
        arg(&exchange(StateProtectArgs::None, Some(impl_id())), &format!("{front} 0 {IMPL_ID}")),
        arg(&exchange(StateProtectArgs::MachCred(ops), None), &format!("{front} 1 2 0 1024 1 16 0")),
        arg(
            &exchange(StateProtectArgs::Ssv(parms), None),
            &format!("{front} 2 2 0 1024 1 16 2 '60 '6162 1 '63 4 2 0"),
        ),
        res(
            &exchanged(StateProtectOk::None, Some(impl_id())),
            &format!("0 q7 1 2147549184 0 {server} {IMPL_ID}"),
        ),
        res(
            &exchanged(StateProtectOk::MachCred(ops), None),
            &format!("0 q7 1 2147549184 1 2 0 1024 1 16 {server} 0"),
        ),
        res(
            &exchanged(StateProtectOk::Ssv(info), None),
            &format!("0 q7 1 2147549184 2 2 0 1024 1 16 1 0 32 4 1 \"gss1\" {server} 0"),
        ),
        res(&ResOp::ExchangeId(Err(Status::ClidInuse)), "10017"),
        arg(&ArgOp::DestroyClientid(DestroyClientidArgs { clientid: 7 }), "q7"),
        res(&ResOp::DestroyClientid(Err(Status::ClientidBusy)), "10074"),
    ]
}

const CHANNEL: ChannelAttrs = ChannelAttrs {
    headerpadsize: 0,
    maxrequestsize: 1_049_620,
    maxresponsesize: 1_049_480,
    maxresponsesize_cached: 2584,
    maxoperations: 8,
    maxrequests: 64,
    rdma_ird: None,
};

fn sessions() -> Vec<Seed> {
    let rdma = ChannelAttrs { rdma_ird: Some(3), ..CHANNEL };
    let sys = AuthsysParms {
        stamp: 5,
        machinename: text("client"),
        uid: 1000,
        gid: 100,
        gids: list(vec![100, 101]),
    };
    let gss = GssCbHandles {
        service: RpcGssSvc::Privacy,
        handle_from_server: text("abcd"),
        handle_from_client: text("efgh"),
    };
    let parms = || {
        list(vec![
            CallbackSecParms::AuthNone,
            CallbackSecParms::AuthSys(sys.clone()),
            CallbackSecParms::RpcsecGss(gss.clone()),
        ])
    };
    let sec = "3 0 1 5 \"client\" 1000 100 2 100 101 6 3 \"abcd\" \"efgh\"";
    let fore = "0 1049620 1049480 2584 8 64 0";
    let back = "0 1049620 1049480 2584 8 64 1 3";
    let create = CreateSessionArgs {
        clientid: 7,
        sequence: 1,
        flags: CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        fore_chan_attrs: CHANNEL,
        back_chan_attrs: rdma,
        cb_program: 0x4000_0000,
        sec_parms: parms(),
    };
    let created = CreateSessionOk {
        sessionid: ID,
        sequence: 1,
        flags: 2,
        fore_chan_attrs: CHANNEL,
        back_chan_attrs: rdma,
    };
    vec![
        arg(&ArgOp::CreateSession(create), &format!("q7 1 3 {fore} {back} 1073741824 {sec}")),
        res(&ResOp::CreateSession(Ok(created)), &format!("0 {I} 1 2 {fore} {back}")),
        res(&ResOp::CreateSession(Err(Status::SeqMisordered)), "10063"),
        arg(&ArgOp::DestroySession(DestroySessionArgs { sessionid: ID }), I),
        res(&ResOp::DestroySession(Err(Status::BadSession)), "10052"),
        arg(
            &ArgOp::BackchannelCtl(BackchannelCtlArgs { cb_program: 9, sec_parms: parms() }),
            &format!("9 {sec}"),
        ),
        res(&ResOp::BackchannelCtl(Ok(())), "0"),
    ]
}

fn connections() -> Vec<Seed> {
    let sequence =
        SequenceArgs { sessionid: ID, sequenceid: 3, slotid: 1, highest_slotid: 5, cachethis: true };
    let sequenced = SequenceOk {
        sessionid: ID,
        sequenceid: 3,
        slotid: 1,
        highest_slotid: 63,
        target_highest_slotid: 31,
        status_flags: SEQ4_STATUS_RESTART_RECLAIM_NEEDED,
    };
    let bind = |dir| {
        ArgOp::BindConnToSession(BindConnToSessionArgs { sessid: ID, dir, use_conn_in_rdma_mode: false })
    };
    let bound = |dir| {
        ResOp::BindConnToSession(Ok(BindConnToSessionOk { sessid: ID, dir, use_conn_in_rdma_mode: false }))
    };
    let ssv = SetSsvArgs { ssv: text("secret"), digest: text("digest") };
    vec![
        arg(&ArgOp::Sequence(sequence), &format!("{I} 3 1 5 1")),
        res(&ResOp::Sequence(Ok(sequenced)), &format!("0 {I} 3 1 63 31 256")),
        res(&ResOp::Sequence(Err(Status::RetryUncachedRep)), "10068"),
        arg(&bind(ChannelDirFromClient::Fore), &format!("{I} 1 0")),
        arg(&bind(ChannelDirFromClient::BackOrBoth), &format!("{I} 7 0")),
        res(&bound(ChannelDirFromServer::Both), &format!("0 {I} 3 0")),
        arg(&ArgOp::SetSsv(ssv), "\"secret\" \"digest\""),
        res(&ResOp::SetSsv(Ok(SetSsvOk { digest: text("digest") })), "0 \"digest\""),
        arg(&ArgOp::SecinfoNoName(SecinfoStyle::Parent), "1"),
        res(&ResOp::SecinfoNoName(Ok(list(vec![Secinfo::Flavor(1), Secinfo::Flavor(0)]))), "0 2 1 0"),
    ]
}

fn stateids() -> Vec<Seed> {
    let codes = list(vec![Outcome::Ok(()), Outcome::Fail(Status::Expired, ())]);
    vec![
        arg(
            &ArgOp::TestStateid(TestStateidArgs { stateids: list(vec![STATEID, Stateid::CURRENT]) }),
            &format!("2 {S} 1 =000000000000000000000000"),
        ),
        res(&ResOp::TestStateid(Ok(TestStateidOk { status_codes: codes })), "0 2 0 10011"),
        arg(
            &ArgOp::FreeStateid(FreeStateidArgs { stateid: Stateid::BYPASS }),
            "=ffffffffffffffffffffffffffffffff",
        ),
        res(&ResOp::FreeStateid(Err(Status::LocksHeld)), "10037"),
        arg(&ArgOp::ReclaimComplete(ReclaimCompleteArgs { one_fs: true }), "1"),
        res(&ResOp::ReclaimComplete(Err(Status::CompleteAlready)), "10054"),
    ]
}

fn delegations() -> Vec<Seed> {
    let want = |claim| ArgOp::WantDelegation(WantDelegationArgs { want: 0x100, claim });
    let attributes = Bitmap::of(&[Attr::Size]);
    let get = GetDirDelegationArgs {
        signal_deleg_avail: true,
        notification_types: Bitmap::from_words([0b1100, 0, 0]),
        child_attr_delay: Nfstime { seconds: 1, nseconds: 2 },
        dir_attr_delay: Nfstime { seconds: 3, nseconds: 4 },
        child_attributes: attributes,
        dir_attributes: Bitmap::EMPTY,
    };
    let got = DirDelegation {
        cookieverf: VERIFIER,
        stateid: STATEID,
        notification: Bitmap::from_words([0b100, 0, 0]),
        child_attributes: Bitmap::EMPTY,
        dir_attributes: attributes,
    };
    let mut seeds = vec![
        arg(&want(DelegClaim::Previous(OpenDelegationType::Read)), "256 1 1"),
        arg(&want(DelegClaim::Fh), "256 4"),
        arg(&want(DelegClaim::DelegPrevFh), "256 6"),
        res(&ResOp::WantDelegation(Err(Status::DelegAlreadyWanted)), "10056"),
        arg(&ArgOp::GetDirDelegation(get), "1 1 12 q1 2 q3 4 1 16 0"),
        res(&ResOp::GetDirDelegation(Ok(GetDirDelegationOk::Ok(got))), &format!("0 0 {V} {S} 1 4 0 1 16")),
        res(
            &ResOp::GetDirDelegation(Ok(GetDirDelegationOk::Unavail { will_signal_deleg_avail: true })),
            "0 1 1",
        ),
        res(&ResOp::GetDirDelegation(Err(Status::DirDelegUnavail)), "10084"),
    ];
    let given = super::minor0::delegations().into_iter().take(3);
    seeds.extend(
        given.map(|(delegation, text)| res(&ResOp::WantDelegation(Ok(delegation)), &format!("0 {text}"))),
    );
    seeds
}

fn devices() -> Vec<Seed> {
    let info = GetdeviceinfoArgs {
        device_id: ID,
        layout_type: 4,
        maxcount: 4096,
        notify_types: Bitmap::from_words([6, 0, 0]),
    };
    let informed =
        GetdeviceinfoOk { layout_type: 4, addr_body: text("body"), notification: Bitmap::EMPTY.with_bit(1) };
    let list_args = GetdevicelistArgs { layout_type: 4, maxdevices: 10, cookie: 3, cookieverf: VERIFIER };
    let listed =
        GetdevicelistOk { cookie: 4, cookieverf: VERIFIER, deviceid_list: list(vec![ID, ID]), eof: true };
    vec![
        arg(&ArgOp::Getdeviceinfo(info), &format!("{I} 4 4096 1 6")),
        res(&ResOp::Getdeviceinfo(Ok(informed)), "0 4 \"body\" 1 2"),
        res(&ResOp::Getdeviceinfo(Err(GetdeviceinfoFailure::TooSmall(8192))), "10005 8192"),
        res(&ResOp::Getdeviceinfo(Err(Status::NoEnt.into())), "2"),
        arg(&ArgOp::Getdevicelist(list_args), &format!("4 10 q3 {V}")),
        res(&ResOp::Getdevicelist(Ok(listed)), &format!("0 q4 {V} 2 {I} {I} 1")),
    ]
}

fn layouts() -> Vec<Seed> {
    let get = LayoutgetArgs {
        signal_layout_avail: false,
        layout_type: 4,
        iomode: LayoutIomode::Rw,
        offset: 1,
        length: 2,
        minlength: 3,
        stateid: STATEID,
        maxcount: 4096,
    };
    let layout =
        Layout { offset: 1, length: 2, iomode: LayoutIomode::Read, layout_type: 4, body: text("body") };
    let got = LayoutgetOk { return_on_close: true, stateid: STATEID, layout: list(vec![layout]) };
    let commit = |last_write_offset, time_modify| {
        ArgOp::Layoutcommit(LayoutcommitArgs {
            offset: 1,
            length: 2,
            reclaim: false,
            stateid: STATEID,
            last_write_offset,
            time_modify,
            layoutupdate: LayoutUpdate { layout_type: 4, body: text("body") },
        })
    };
    let give_back = |iomode, layoutreturn| {
        ArgOp::Layoutreturn(LayoutreturnArgs { reclaim: false, layout_type: 4, iomode, layoutreturn })
    };
    let file =
        LayoutReturn::File(LayoutreturnFile { offset: 1, length: 2, stateid: STATEID, body: text("body") });
    vec![
        arg(&ArgOp::Layoutget(get), &format!("0 4 2 q1 q2 q3 {S} 4096")),
        res(&ResOp::Layoutget(Ok(got)), &format!("0 1 {S} 1 q1 q2 1 4 \"body\"")),
        res(&ResOp::Layoutget(Err(LayoutgetFailure::LayoutTryLater(true))), "10058 1"),
        res(&ResOp::Layoutget(Err(Status::LayoutUnavailable.into())), "10059"),
        arg(
            &commit(Some(9), Some(Nfstime { seconds: 5, nseconds: 6 })),
            &format!("q1 q2 0 {S} 1 q9 1 q5 6 4 \"body\""),
        ),
        arg(&commit(None, None), &format!("q1 q2 0 {S} 0 0 4 \"body\"")),
        res(&ResOp::Layoutcommit(Ok(LayoutcommitOk { newsize: Some(10) })), "0 1 q10"),
        arg(&give_back(LayoutIomode::Any, file), &format!("0 4 3 1 q1 q2 {S} \"body\"")),
        arg(&give_back(LayoutIomode::Other(9), LayoutReturn::Fsid), "0 4 9 2"),
        arg(&give_back(LayoutIomode::Any, LayoutReturn::All), "0 4 3 3"),
        res(&ResOp::Layoutreturn(Ok(LayoutreturnOk { stateid: Some(STATEID) })), &format!("0 1 {S}")),
        res(&ResOp::Layoutreturn(Ok(LayoutreturnOk { stateid: None })), "0 0"),
    ]
}
