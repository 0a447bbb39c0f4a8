//! The seed corpora of `fuzz/`. Each example of the tests is a file there. The tests run the fuzz bodies on
//! all files of the corpora and on mutations of them, which are the same each time.

use super::wire::Seed;
use crate::fuzzing::{corpus, over_corpus};

/// Environment variable: set it to write the corpora from the examples.
const UPDATE: &str = "UPDATE_SEEDS";

#[test]
fn nfs3_bodies_hold() {
    run("nfs3", &super::nfs3::seeds(), crate::fuzzing::nfs3);
}

#[test]
fn nfs4_bodies_hold() {
    run("nfs4", &super::nfs4::seeds(), crate::fuzzing::nfs4);
}

#[test]
fn nfs2_bodies_hold() {
    run("nfs2", &super::nfs2::seeds(), crate::fuzzing::nfs2);
}

#[test]
fn nqnfs_bodies_hold() {
    run("nqnfs", &super::nqnfs::seeds(), crate::fuzzing::nqnfs);
}

#[test]
fn mount_bodies_hold() {
    run("mount", &super::others::mount_seeds(), crate::fuzzing::mount);
}

#[test]
fn portmap_bodies_hold() {
    run("portmap", &super::others::portmap_seeds(), crate::fuzzing::portmap);
}

#[test]
fn rpcbind_bodies_hold() {
    run("rpcbind", &super::locking::rpcbind_seeds(), crate::fuzzing::rpcbind);
}

#[test]
fn nlm_bodies_hold() {
    run("nlm", &super::locking::nlm_seeds(), crate::fuzzing::nlm);
}

#[test]
fn nsm_bodies_hold() {
    run("nsm", &super::locking::nsm_seeds(), crate::fuzzing::nsm);
}

fn run(target: &str, examples: &[Seed], body: fn(&[u8])) {
    check(&corpus(target), examples);
    over_corpus(target, body);
}

/// Compares the corpus with the examples, or writes it.
fn check(corpus: &std::path::Path, examples: &[Seed]) {
    let mut taken = Vec::new();
    for seed in examples {
        let number = taken.iter().filter(|name| **name == &seed.name).count();
        taken.push(&seed.name);
        let file =
            corpus.join(if number == 0 { seed.name.clone() } else { format!("{}-{number}", seed.name) });
        if std::env::var_os(UPDATE).is_some() {
            std::fs::create_dir_all(corpus).unwrap();
            std::fs::write(&file, &seed.input).unwrap();
        }
        let stored = std::fs::read(&file).unwrap_or_default();
        assert!(stored == seed.input, "{} is not the example; {UPDATE}=1 writes it", file.display());
    }
}
