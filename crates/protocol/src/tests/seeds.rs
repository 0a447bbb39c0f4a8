//! The seed corpora of `fuzz/`: each example of the tests is a file there, and the fuzz bodies are run over all that
//! the corpora hold and over mutations of it, the same ones each time.

use std::path::PathBuf;

use super::wire::Seed;

/// Mutations of each seed.
const ROUNDS: u32 = 300;

/// Set to write the corpora from the examples.
const UPDATE: &str = "UPDATE_SEEDS";

#[test]
fn nfs3_bodies_hold() {
    run("nfs3", &super::nfs3::seeds(), crate::fuzzing::nfs3);
}

#[test]
fn nfs2_bodies_hold() {
    run("nfs2", &super::nfs2::seeds(), crate::fuzzing::nfs2);
}

#[test]
fn mount_bodies_hold() {
    run("mount", &super::others::mount_seeds(), crate::fuzzing::mount);
}

#[test]
fn portmap_bodies_hold() {
    run("portmap", &super::others::portmap_seeds(), crate::fuzzing::portmap);
}

fn run(target: &str, examples: &[Seed], body: fn(&[u8])) {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    check(&corpus, examples);
    let mut random = Random(0x1ea5_e401_d000_0001);
    let mut files: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let seed = std::fs::read(file).unwrap();
        body(&seed);
        for _ in 0..ROUNDS {
            body(&mutated(&seed, &mut random));
        }
    }
}

/// Holds the corpus against the examples, or writes it.
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

/// One to four changes of a message, of the kinds that find faults: bits, words at their extremes, cuts, repeats.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        let word = at..bytes.len().min(at + 4);
        match random.below(6) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            1 => bytes[word].fill(0xff),
            2 => bytes[word].fill(0),
            3 => bytes.truncate(at),
            4 => bytes.extend_from_within(at..),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
        }
    }
    bytes
}

/// A small generator, so that a failure comes back.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
