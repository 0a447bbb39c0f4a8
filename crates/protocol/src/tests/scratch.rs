use crate::nfs4::*;
#[test]
fn scratch() {
    eprintln!(
        "Fattr {} ArgOp {} ResOp {} Entry {} Open {} ",
        size_of::<Fattr>(),
        size_of::<ArgOp>(),
        size_of::<ResOp>(),
        size_of::<Entry>(),
        size_of::<OpenArgs>()
    );
    let text = |s: &'static str| xdr::Opaque::new(s.as_bytes()).unwrap();
    let t = Nfstime { seconds: 1, nseconds: 2 };
    let f = || Fattr {
        ftype: Some(Ftype::Reg),
        change: Some(1),
        size: Some(2),
        fsid: Some(Fsid::default()),
        fileid: Some(3),
        mode: Some(4),
        numlinks: Some(5),
        owner: Some(text("1000")),
        owner_group: Some(text("1000")),
        rawdev: Some(Specdata::default()),
        space_used: Some(4096),
        time_access: Some(t),
        time_create: Some(t),
        time_metadata: Some(t),
        time_modify: Some(t),
        mounted_on_fileid: Some(1),
        ..Fattr::default()
    };
    let start = std::time::Instant::now();
    const N: u32 = 1_000_000;
    let mut total = 0;
    for _ in 0..N {
        let mut e = xdr::Encoder::with_capacity(1024);
        xdr::Encode::encode(std::hint::black_box(&f()), &mut e);
        total += e.len();
    }
    eprintln!("make+encode {:?} {total}", start.elapsed() / N);
    let v = f();
    let start = std::time::Instant::now();
    for _ in 0..N {
        let mut e = xdr::Encoder::with_capacity(1024);
        xdr::Encode::encode(std::hint::black_box(&v), &mut e);
        total += e.len();
    }
    eprintln!("encode {:?} {total}", start.elapsed() / N);
    let b = xdr::to_bytes(&v).unwrap();
    let start = std::time::Instant::now();
    for _ in 0..N {
        let v = xdr::from_bytes::<Fattr>(std::hint::black_box(b.clone())).unwrap();
        std::hint::black_box(&v);
    }
    eprintln!("decode {:?}", start.elapsed() / N);
}
