//! git: two clients push to one bare repository, move one branch with `update-ref`, and commit in worktrees
//! of the repository. One of them collects garbage meanwhile. No commit is lost, and git reports only that
//! the other client was faster.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Pair;

/// How long a client retries one change. Each failure is a success of the other client.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first client collects garbage once per this number of commits.
const COLLECT_EVERY: usize = 2;
/// The old value that `update-ref` expects for a branch that does not exist.
const ABSENT: &str = "0000000000000000000000000000000000000000";

/// Runs git in a directory. The error is git's message.
pub fn git(at: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.current_dir(at).args(["-c", "user.name=lab", "-c", "user.email=lab@localhost"]);
    command.args(["-c", "gc.auto=0", "-c", "safe.directory=*"]).args(arguments).stdin(Stdio::null());
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    let output = command.output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(said(&output.stdout)) } else { Err(said(&output.stderr)) }
}

/// Does the message mean that another client was faster? That is no fault. The hash of a commit may end in
/// "bad".
pub fn is_contention(said: &str) -> bool {
    let words = ["non-fast-forward", "fetch first", "failed to update ref", "cannot lock ref", "File exists"];
    words.iter().any(|word| said.contains(word)) && !said.contains(" bad ") && !said.contains("corrupt")
}

/// The collections of garbage. git removes the empty directories of `objects`, and so pulls away the
/// directory that another git has just made for an object. It does so on a local disk too, if a collection
/// runs between the `mkdir` of a push and its temporary file, or its `link`.
#[derive(Default)]
struct Collections {
    /// Odd while one runs.
    borders: AtomicU64,
}

impl Collections {
    fn run<T>(&self, collect: impl FnOnce() -> T) -> T {
        self.borders.fetch_add(1, Ordering::SeqCst);
        let done = collect();
        self.borders.fetch_add(1, Ordering::SeqCst);
        done
    }

    /// Runs `attempt`. Says too whether a collection ran meanwhile.
    fn beside<T>(&self, attempt: impl FnOnce() -> T) -> (T, bool) {
        let before = self.borders.load(Ordering::SeqCst);
        let done = attempt();
        (done, before % 2 == 1 || before != self.borders.load(Ordering::SeqCst))
    }
}

/// Does the message mean that a directory of objects was removed before the object was in it? git makes a
/// temporary file there, and then renames or links it.
fn is_pulled_away(said: &str) -> bool {
    let of_object = said.contains("unable to write file ") && said.contains("/objects/");
    (of_object || said.contains("unable to create temporary file"))
        && said.contains("No such file or directory")
}

/// Was a mapped file removed over version 3? `git gc` maps the indexes of all worktrees, and the other client
/// replaces its own. Version 3 has no opens, so the pages of the old file cannot be read any more (SIGBUS).
fn is_unmapped(what: &str, said: &str) -> bool {
    what.contains("version 3") && said.contains("died of signal 7")
}

/// Retries until the other client is not faster, and collects no garbage meanwhile.
fn until_done<T>(what: &str, collections: &Collections, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        let said = match collections.beside(&mut attempt) {
            (Ok(done), _) => return done,
            (Err(said), collected) if collected && is_pulled_away(&said) => continue,
            (Err(said), _) if is_unmapped(what, &said) && began.elapsed() < PATIENCE => continue,
            (Err(said), _) => said,
        };
        assert!(is_contention(&said), "{what}: {said}");
        assert!(began.elapsed() < PATIENCE, "{what}: never let in: {said}");
    }
}

/// Both clients make this many commits of each kind, at the same time.
pub fn play(pair: &Pair, commits: usize) {
    let setting = &pair.setting;
    git(&pair.first(""), &["init", "-q", "--bare", "-b", "main", "shared.git"]).unwrap();
    let clone = |name: &str| pair.scratch.join(format!("clone-{name}"));
    let make_clone = |name: &str, at: &Path| {
        let to = clone(name);
        git(at, &["clone", "-q", "shared.git", to.to_str().unwrap()])
            .unwrap_or_else(|said| panic!("{setting}: clone by {name}: {said}"));
    };
    let (first, at) = &pair.clients[0];
    make_clone(first, at);
    git(&clone(first), &["checkout", "-q", "-b", "main"]).unwrap();
    git(&clone(first), &["commit", "-q", "--allow-empty", "-m", "first"]).unwrap();
    git(&clone(first), &["push", "-q", "origin", "main"]).unwrap();
    let (second, at) = &pair.clients[1];
    make_clone(second, at);
    // One after the other: git reads the files of all worktrees, and gives up if one of them is still empty
    // because another git is writing it.
    for (name, at) in &pair.clients {
        let (branch, tree) = (format!("tree-{name}"), at.join(format!("tree-{name}")));
        let words = ["worktree", "add", "-q", "-b", &branch, tree.to_str().unwrap(), "main"];
        git(&at.join("shared.git"), &words)
            .unwrap_or_else(|said| panic!("{setting}: {name}: worktree add: {said}"));
    }
    let collections = Collections::default();
    pair.each(|name, at| {
        let by = format!("{setting}: {name}");
        let shared = at.join("shared.git");
        let tree = at.join(format!("tree-{name}"));
        for number in 0..commits {
            push(&by, &collections, &clone(name), &format!("{name} {number}"));
            update(&by, &collections, &shared, &format!("{name} {number}"));
            commit(&by, &collections, &tree, &format!("{name} {number}"));
            if name == *first && number % COLLECT_EVERY == COLLECT_EVERY - 1 {
                let collect = || collections.run(|| git(&shared, &["gc", "--quiet"]));
                until_done(&format!("{by}: gc"), &collections, collect);
            }
        }
    });
    pair.each(|name, at| check(&format!("{setting}: {name}"), &at.join("shared.git"), commits));
    git(&pair.second("shared.git"), &["gc", "--quiet"])
        .unwrap_or_else(|said| panic!("{setting}: gc: {said}"));
    pair.each(|name, at| check(&format!("{setting}: {name} after gc"), &at.join("shared.git"), commits));
}

/// Commits in a clone, and pushes on top of the other client's commits.
fn push(by: &str, collections: &Collections, clone: &Path, subject: &str) {
    fs::write(clone.join(subject), subject).unwrap();
    git(clone, &["add", "."]).unwrap();
    git(clone, &["commit", "-q", "-m", subject]).unwrap();
    until_done(&format!("{by}: push of {subject}"), collections, || {
        let pushed = git(clone, &["push", "-q", "origin", "main"]);
        if pushed.is_err() {
            git(clone, &["pull", "-q", "--no-edit", "--rebase", "origin", "main"])
                .unwrap_or_else(|said| panic!("{by}: pull: {said}"));
        }
        pushed
    });
}

/// Moves a branch if it is still at the commit that was read. If two clients have read the same commit, one
/// wins.
fn update(by: &str, collections: &Collections, shared: &Path, subject: &str) {
    until_done(&format!("{by}: update-ref to {subject}"), collections, || {
        let old = git(shared, &["rev-parse", "-q", "--verify", "refs/heads/counter"]).unwrap_or_default();
        let tree = git(shared, &["rev-parse", "main^{tree}"])?;
        let mut words = vec!["commit-tree", "-m", subject, &tree];
        if !old.is_empty() {
            words.extend(["-p", &old]);
        }
        let new = git(shared, &words)?;
        let expected = if old.is_empty() { ABSENT } else { &old };
        git(shared, &["update-ref", "refs/heads/counter", &new, expected])
    });
}

/// Commits in a worktree on the export.
fn commit(by: &str, collections: &Collections, tree: &Path, subject: &str) {
    fs::write(tree.join(subject), subject).unwrap();
    for words in [&["add", "."][..], &["commit", "-q", "-m", subject]] {
        until_done(&format!("{by}: {} of {subject}", words[0]), collections, || git(tree, words));
    }
}

fn check(by: &str, shared: &Path, commits: usize) {
    let ask = |words: &[&str]| git(shared, words).unwrap_or_else(|said| panic!("{by}: {}: {said}", words[0]));
    for branch in ["main", "counter", "tree-a", "tree-b"] {
        let log = ask(&["log", "--format=%s", branch]);
        for client in
            ["a", "b"].into_iter().filter(|client| !branch.contains('-') || branch.ends_with(client))
        {
            for number in 0..commits {
                let subject = format!("{client} {number}");
                assert!(log.lines().any(|line| line == subject), "{by}: {subject} is lost on {branch}");
            }
        }
    }
    assert_eq!(ask(&["rev-list", "--count", "counter"]), (2 * commits).to_string(), "{by}");
    ask(&["fsck", "--strict"]);
}
