//! Tests of valid and invalid URLs.

use std::time::Duration;

use super::*;

#[test]
fn the_whole_of_one() {
    let url = Url::parse(
        "nfs://srv.example:12049/srv/a%20b/?mountport=20048&nconnect=4&rsize=65537&wsize=10&soft&timeo=7&retrans=5\
         &proto=udp&vers=3&noresvport&acregmin=1&actimeo=9&acdirmax=10&nocto&lookupcache=pos&noac&sec=sys",
    )
    .unwrap();
    assert_eq!((url.host.as_str(), url.port), ("srv.example", Some(12049)));
    assert_eq!(url.export, b"/srv/a b");
    let options = url.options.clone();
    assert_eq!((options.mountport, options.nconnect, options.proto), (Some(20048), Some(4), Proto::Udp));
    assert_eq!((options.rsize, options.wsize), (Some(65536), Some(4096)));
    assert!(options.soft && !options.resvport);
    assert_eq!(options.patience(), Some(Duration::from_millis(3500)));
    assert_eq!(options.cache.acregmin, Duration::from_secs(9));
    assert_eq!(options.cache.acdirmax, Duration::from_secs(10));
    assert!(!options.cache.cto && !options.cache.ac);
    assert_eq!(options.cache.lookupcache, LookupCache::Positive);
    assert_eq!(url.to_string(), "nfs://srv.example:12049/srv/a%20b");
}

#[test]
fn defaults_are_those_of_nfs_5() {
    let url = Url::parse("nfs://10.0.0.1/srv").unwrap();
    assert_eq!(url.port, None);
    assert_eq!(url.options, Options::default());
    assert_eq!(url.options.timeo(), Duration::from_secs(60));
    assert_eq!(url.options.patience(), None);
    assert_eq!(url.options.cache.acdirmin, Duration::from_secs(30));
    assert_eq!(Url::parse("nfs://host").unwrap().export, b"/");
    assert_eq!(Url::parse("nfs://host/").unwrap().export, b"/");
}

#[test]
fn ipv6_stands_in_brackets() {
    let url = Url::parse("nfs://[fd00::1]:2050/x").unwrap();
    assert_eq!((url.host.as_str(), url.port), ("fd00::1", Some(2050)));
    assert_eq!(url.to_string(), "nfs://[fd00::1]:2050/x");
    assert_eq!(Url::parse("nfs://[::1]/x").unwrap().port, None);
    for bad in ["nfs://[::1/x", "nfs://[x]/x", "nfs://[::1]2049/x", "nfs:///x", "nfs://a b/x", "nfs://u@h/x"]
    {
        assert!(matches!(Url::parse(bad), Err(UrlError::Host(_))), "{bad}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let message = |text| Url::parse(text).unwrap_err().to_string();
    assert_eq!(message("http://x/"), "`http://x/` is not an NFS URL: write nfs://HOST[:PORT]/EXPORT");
    assert_eq!(message("nfs://h:0/x"), "`0` is not a port: write a number from 1 to 65535, or leave it out");
    assert_eq!(
        message("nfs://h/x?nconnect=17"),
        "option `nconnect=17`: a number of connections from 1 to 16"
    );
    assert!(
        message("nfs://h/x?vers=2")
            .starts_with("option `vers=2`: `3`, `4`, `4.1`, `4.2`, `nqnfs`, or `auto`")
    );
    assert_eq!(message("nfs://h/x?hard=1"), "option `hard=1`: takes no value");
    assert!(message("nfs://h/x?rszie=1").starts_with("unknown option `rszie=1`: known are port, mountport"));
    assert!(message("nfs://h/%2").contains("`/%2` is not an export path"));
    assert!(message("nfs://h/%00").contains("no NUL"));
}

#[test]
fn versions_are_tried_from_the_highest_down() {
    let vers = |word: &str| Url::parse(&format!("nfs://h/x?{word}")).unwrap().options.vers;
    assert_eq!(vers(""), Version::Auto);
    assert_eq!((vers("vers=3").minors(), vers("vers=3").takes_v3()), (&[][..], true));
    assert_eq!((vers("nfsvers=4.1").minors(), vers("vers=4.1").takes_v3()), (&[1][..], false));
    assert_eq!((vers("vers=4.2").minors(), vers("vers=4.2").takes_v3()), (&[2][..], false));
    assert_eq!((vers("vers=4").minors(), vers("vers=4").takes_v3()), (&[2, 1][..], false));
    assert_eq!((vers("vers=auto").minors(), vers("vers=auto").takes_v3()), (&[2, 1][..], true));
}

#[test]
fn any_bytes_can_be_exported() {
    let url = Url::parse("nfs://h/caf%e9%2F%25").unwrap();
    assert_eq!(url.export, b"/caf\xe9/%");
    assert_eq!(Url::parse(&url.to_string()).unwrap(), url);
}
