//! Walks without a cache: which guesses follow which steps.

mod deep;

use super::roster::tests::roster;
use super::walks::Outcome;
use super::*;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn handle(text: &str) -> Handle {
    Handle::new(text.as_bytes()).unwrap()
}

/// A step in a directory of the tree. Every directory has the name of its handle.
fn step(directory: &str, parent: &str, action: Action) -> Step {
    let at = (!parent.is_empty()).then(|| (handle(parent), name(directory)));
    Step { directory: handle(directory), at, directory_bytes: 0, action }
}

fn opened(text: &str) -> Action {
    Action::Opened(name(text), handle(text))
}

fn looked(text: &str) -> Action {
    Action::Looked(name(text))
}

struct Reader {
    walks: Walks,
    caller: Caller,
    now: Instant,
}

impl Reader {
    fn new() -> Reader {
        Reader { walks: Walks::new(64 << 20), caller: Caller::unix(1, 1, &[]), now: Instant::now() }
    }

    fn step(&mut self, directory: &str, parent: &str, action: Action) {
        self.walks.step(&self.caller, &step(directory, parent, action), self.now);
    }

    fn listed(&mut self, directory: &str, names: &[&str]) {
        self.walks.listed(&handle(directory), &Arc::new(roster(names)), self.now);
    }

    /// The handles of the next guesses.
    fn guesses(&mut self) -> Vec<String> {
        let targets = self.walks.targets(1000, self.now);
        targets.iter().map(|target| String::from_utf8(target.handle().as_bytes().to_vec()).unwrap()).collect()
    }
}

#[test]
fn the_second_name_in_a_directory_brings_its_listing() {
    let mut reader = Reader::new();
    reader.step("d", "", looked("a"));
    reader.step("d", "", looked("a"));
    assert!(reader.guesses().is_empty(), "the same name again is no second step");
    reader.step("d", "", looked("b"));
    assert_eq!(reader.guesses(), ["d"]);
    assert!(reader.guesses().is_empty(), "once");
}

#[test]
fn another_user_is_another_reader() {
    let mut reader = Reader::new();
    reader.step("d", "", looked("a"));
    reader.caller = Caller::unix(2, 2, &[]);
    reader.step("d", "", looked("b"));
    assert!(reader.guesses().is_empty());
}

#[test]
fn a_large_directory_needs_more_names() {
    let mut reader = Reader::new();
    let large = |text: &str| Step { directory_bytes: 64 << 10, ..step("d", "", looked(text)) };
    for n in 0..31 {
        reader.walks.step(&reader.caller, &large(&format!("n{n}")), reader.now);
        assert!(reader.guesses().is_empty());
    }
    reader.walks.step(&reader.caller, &large("n31"), reader.now);
    assert_eq!(reader.guesses(), ["d"]);
}

#[test]
fn a_reader_of_a_directory_and_of_one_in_it_gets_the_others_depth_first() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    assert!(reader.guesses().is_empty());
    reader.step("a", "top", Action::Listed);
    assert_eq!(reader.guesses(), ["top"], "its entries, which are here already");
    reader.listed("top", &["a/", "file", ".snapshot/", "b/", "c/"]);
    assert_eq!(reader.guesses(), ["b", "c"], "`a` is asked for by the reader");
    reader.listed("b", &["b1/", "b2/"]);
    reader.listed("a", &["a1/"]);
    assert_eq!(reader.guesses(), ["a1", "b1", "b2"], "in the order of the reader");
}

#[test]
fn files_are_guessed_behind_two_opens_and_into_the_next_directories() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("top", "", opened("f1"));
    reader.step("top", "", opened("f2"));
    assert_eq!(reader.guesses(), ["top"]);
    reader.listed("top", &["f1", "f2", "a/", "f3", "b/"]);
    assert_eq!(reader.guesses(), ["f3"], "it has not gone down yet");
    reader.step("a", "top", Action::Listed);
    reader.listed("a", &["a1", "a2"]);
    assert_eq!(reader.guesses(), ["b", "a1", "a2"]);
    reader.step("a", "top", opened("a1"));
    assert!(!reader.walks.is_expected(&handle("a1")) && reader.walks.is_expected(&handle("a2")));
}

#[test]
fn names_in_order_show_that_the_reader_goes_by_name() {
    let mut reader = Reader::new();
    reader.step("top", "", looked("a"));
    reader.step("top", "", looked("b"));
    assert_eq!(reader.guesses(), ["top"]);
    reader.listed("top", &["z/", "b", "m/", "a", "c/"]);
    reader.step("c", "top", looked("c1"));
    assert_eq!(reader.guesses(), ["c", "m", "z"]);
}

#[test]
fn what_a_depth_first_reader_has_passed_is_guessed_no_more() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("a", "top", Action::Listed);
    reader.guesses();
    reader.listed("top", &["a/", "b/", "c/"]);
    assert_eq!(reader.guesses(), ["b", "c"]);
    reader.step("c", "top", Action::Listed);
    assert!(!reader.walks.is_expected(&handle("b")));
    reader.listed("b", &["b1/"]);
    reader.listed("c", &["c1/"]);
    assert_eq!(reader.guesses(), ["c1"]);
    reader.step("b", "top", Action::Listed);
    assert_eq!(reader.guesses(), ["b1"], "it comes back: it does not go depth first");
}

#[test]
fn a_guess_that_brought_nothing_makes_room_and_costs_nothing() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("top", "", opened("f00"));
    reader.step("top", "", opened("f01"));
    reader.guesses();
    let names: Vec<String> = (0..100).map(|n| format!("f{n:02}")).collect();
    reader.listed("top", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let first = reader.walks.guesses(0, 1000, reader.now);
    let window = first.len();
    assert!(reader.walks.guesses(0, 1000, reader.now).is_empty());
    for guess in &first {
        reader.walks.done(guess, Outcome::Nothing, reader.now);
    }
    assert_eq!(reader.walks.guesses(0, 1000, reader.now).len(), window, "the window is as large as before");
}

#[test]
fn files_without_a_lease_are_not_worth_more_guesses() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("top", "", opened("f00"));
    reader.step("top", "", opened("f01"));
    reader.guesses();
    let names: Vec<String> = (0..100).map(|n| format!("f{n:02}")).collect();
    reader.listed("top", &names.iter().map(String::as_str).collect::<Vec<_>>());
    for guess in reader.walks.guesses(0, 4, reader.now) {
        reader.walks.done(&guess, Outcome::File { bytes: 100, leased: false }, reader.now);
    }
    assert!(reader.guesses().is_empty());
    reader.now += std::time::Duration::from_secs(59);
    reader.step("top", "", opened("f02"));
    assert!(reader.guesses().is_empty());
    reader.now += std::time::Duration::from_secs(2);
    reader.step("top", "", opened("f06"));
    assert!(!reader.guesses().is_empty(), "they may be given again");
}

#[test]
fn a_second_pass_is_guessed_like_the_first() {
    let mut reader = Reader::new();
    let pass = |reader: &mut Reader| {
        reader.step("top", "", Action::Listed);
        reader.step("a", "top", Action::Listed);
        let mut guesses = reader.guesses();
        reader.listed("top", &["a/", "b/", "c/"]);
        guesses.append(&mut reader.guesses());
        guesses.retain(|guess| guess != "top");
        for directory in ["a", "b", "c"] {
            reader.listed(directory, &["f"]);
            reader.step(directory, "top", Action::Listed);
        }
        guesses
    };
    assert_eq!(pass(&mut reader), ["b", "c"]);
    assert!(reader.guesses().is_empty());
    reader.now += Duration::from_secs(5);
    assert_eq!(pass(&mut reader), ["b", "c"]);
}

/// As find(1) does: it goes into some directories before it looks at the files beside them.
#[test]
fn a_second_pass_that_begins_below_the_top_is_guessed_too() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.listed("top", &["da/", "db/", "dc/", "dd/", "f"]);
    for directory in ["da", "db", "dc", "dd"] {
        reader.step(directory, "top", Action::Listed);
        reader.guesses();
        reader.listed(directory, &["g"]);
    }
    reader.now += Duration::from_secs(5);
    for directory in ["dc", "dd"] {
        reader.step(directory, "top", Action::Listed);
        reader.listed(directory, &["g"]);
    }
    reader.guesses();
    reader.now += Duration::from_millis(100);
    reader.step("top", "", Action::Listed);
    reader.listed("top", &["da/", "db/", "dc/", "dd/", "f"]);
    assert_eq!(reader.guesses(), ["da", "db"], "the others have been read in this pass");
}

/// The reader of a further pass begins anywhere, and the one before has lately begun again elsewhere.
#[test]
fn further_passes_in_another_order_are_guessed_too() {
    let mut reader = Reader::new();
    let all = ["da/", "db/", "dc/", "dd/", "f"];
    reader.step("top", "", Action::Listed);
    for directory in ["da", "db", "dc", "dd"] {
        reader.step(directory, "top", Action::Listed);
        if directory == "da" {
            reader.listed("top", &all);
        }
        reader.guesses();
        reader.listed(directory, &["g"]);
    }
    for pass in 0..3 {
        reader.now += Duration::from_secs(5);
        reader.step("dc", "top", Action::Listed);
        reader.listed("dc", &["g"]);
        let mut guesses = reader.guesses();
        reader.now += Duration::from_millis(100);
        reader.step("da", "top", Action::Listed);
        reader.listed("da", &["g"]);
        guesses.append(&mut reader.guesses());
        guesses.retain(|guess| guess != "top");
        guesses.sort();
        assert_eq!(guesses, ["db", "dd"], "pass {pass}");
        for directory in ["dd", "db"] {
            reader.listed(directory, &["g"]);
            reader.step(directory, "top", Action::Listed);
        }
        reader.guesses();
        reader.step("top", "", looked("f"));
    }
}

/// A further pass of which nothing but two missing guesses tells.
#[test]
fn a_pass_that_seems_to_go_on_is_guessed_after_two_listings() {
    let mut reader = Reader::new();
    let all = ["da/", "db/", "dc/", "dd/", "de/"];
    reader.step("top", "", Action::Listed);
    for directory in ["da", "db", "dc", "dd", "de"] {
        reader.step(directory, "top", Action::Listed);
        if directory == "da" {
            reader.listed("top", &all);
        }
        reader.guesses();
        reader.listed(directory, &["g"]);
    }
    reader.now += Duration::from_secs(5);
    reader.step("da", "top", Action::Listed);
    reader.listed("da", &["g"]);
    reader.guesses();
    reader.now += Duration::from_millis(40);
    reader.step("db", "top", Action::Listed);
    assert_eq!(reader.guesses(), ["dc", "dd", "de"]);
}

#[test]
fn attributes_that_are_out_of_date_are_brought_together() {
    let mut reader = Reader::new();
    reader.step("d", "", looked("a"));
    reader.step("d", "", looked("b"));
    assert_eq!(reader.guesses(), ["d"]);
    reader.listed("d", &["a", "b", "c", "d1", "d2"]);
    reader.step("d", "", looked("c"));
    assert!(reader.guesses().is_empty());
    reader.now += Duration::from_secs(10);
    reader.step("d", "", looked("a"));
    assert!(reader.guesses().is_empty());
    reader.step("d", "", looked("b"));
    assert_eq!(reader.guesses(), ["d"]);
}

#[test]
fn a_guess_that_came_too_early_is_made_again_with_the_first_name() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("da", "top", Action::Listed);
    assert_eq!(reader.guesses(), ["top"]);
    reader.listed("top", &["da/", "db/", "dc/"]);
    assert_eq!(reader.guesses(), ["db", "dc"]);
    reader.listed("db", &["f", "g"]);
    reader.listed("dc", &["f", "g"]);
    reader.step("db", "top", looked("f"));
    assert!(reader.guesses().is_empty(), "in time");
    reader.now += Duration::from_secs(2);
    reader.step("dc", "top", looked("f"));
    assert_eq!(reader.guesses(), ["dc"]);
}

/// git(1) looks into `objects`, and not into the directories there.
#[test]
fn directories_that_the_reader_does_not_go_into_are_guessed_a_few_at_a_time() {
    let mut reader = Reader::new();
    let names = |letter: char| (0..40).map(|n| format!("{letter}{n:02}/")).collect::<Vec<_>>();
    let (many, inner) = (names('a'), names('b'));
    reader.step("top", "", Action::Listed);
    reader.step("a00", "top", Action::Listed);
    reader.guesses();
    reader.listed("top", &many.iter().map(String::as_str).chain(["objects/"]).collect::<Vec<_>>());
    reader.guesses();
    // The window grows with each guess that is used.
    for directory in &many[1..] {
        let directory = directory.trim_end_matches('/');
        reader.step(directory, "top", Action::Listed);
        reader.listed(directory, &["f"]);
        reader.guesses();
    }
    reader.listed("objects", &inner.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(reader.guesses(), ["b00", "b01", "b02", "b03", "b04", "b05", "b06", "b07"]);
    reader.step("objects", "top", looked("f"));
    assert!(reader.guesses().is_empty());
    reader.step("b00", "objects", Action::Listed);
    assert_eq!(reader.guesses()[0], "b08", "it has gone into one");
}

/// A walk whose guesses were all wrong still lists the directories in which the reader looks names up.
#[test]
fn a_used_up_budget_does_not_cost_a_call_for_each_name() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("a", "top", Action::Listed);
    reader.guesses();
    let caller = reader.caller.clone();
    let guesses = |reader: &mut Reader| {
        // Readers have asked for nothing, so nothing is earned.
        let guesses = reader.walks.guesses(0, 1000, reader.now);
        let text = |guess: Guess| String::from_utf8(guess.target.handle().as_bytes().to_vec()).unwrap();
        guesses.into_iter().map(text).collect::<Vec<_>>()
    };
    reader.walks.spend_all();
    for n in 0..CREDIT {
        let directory = format!("once{n}");
        reader.step(&directory, "top", looked("n"));
        assert_eq!(guesses(&mut reader), [directory], "one name, while there is credit");
    }
    reader.step("twice", "top", looked("n"));
    assert!(guesses(&mut reader).is_empty(), "one name");
    reader.step("twice", "top", looked("m"));
    assert_eq!(guesses(&mut reader), ["twice"]);
    let large = |text: &str| Step { directory_bytes: 1 << 20, ..step("large", "top", looked(text)) };
    for text in ["n", "m", "o"] {
        reader.walks.step(&caller, &large(text), reader.now);
        assert!(guesses(&mut reader).is_empty(), "a large directory");
    }
    // Listings that are used bring new credit.
    reader.listed("once3", &["m", "n"]);
    reader.step("once3", "top", looked("m"));
    reader.step("again", "top", looked("n"));
    assert_eq!(guesses(&mut reader), ["again"]);
}

#[test]
fn a_directory_that_is_opened_is_listed_at_once() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Entered);
    reader.step("top", "", Action::Listed);
    assert!(reader.guesses().is_empty(), "that may be any reader");
    reader.step("a", "top", Action::Entered);
    assert_eq!(reader.guesses(), ["top", "a"], "the reader waits for both");
    reader.listed("top", &["a/", "b/"]);
    assert_eq!(reader.guesses(), ["b"]);
    reader.listed("a", &["x/"]);
    reader.now += Duration::from_secs(10);
    reader.step("x", "a", Action::Entered);
    reader.step("a", "top", Action::Entered);
    assert!(reader.guesses().contains(&"a".to_owned()), "its attributes have expired");
    reader.now += Duration::from_secs(10);
    let large = Step { directory_bytes: 1 << 20, ..step("a", "top", Action::Entered) };
    reader.walks.step(&reader.caller, &large, reader.now);
    assert!(!reader.guesses().contains(&"a".to_owned()), "one reply does not hold its listing");
    let new = Step { directory_bytes: 1 << 20, ..step("new", "top", Action::Entered) };
    reader.walks.step(&reader.caller, &new, reader.now);
    assert!(!reader.guesses().contains(&"new".to_owned()), "nor that of one that was not expected");
}

#[test]
fn remembered_entries_lead_ahead_and_count_as_out_of_date() {
    let mut reader = Reader::new();
    reader.step("top", "", Action::Listed);
    reader.step("a", "top", Action::Entered);
    reader.walks.remembered(&handle("top"), &Arc::new(roster(&["a/", "b/", "c/"])), reader.now);
    assert_eq!(reader.guesses(), ["top", "a", "b", "c"], "nobody waits for the listing of top");
    reader.listed("b", &["b1"]);
    reader.walks.remembered(&handle("b"), &Arc::new(roster(&["other/"])), reader.now);
    reader.step("b", "top", Action::Entered);
    assert!(reader.guesses().is_empty(), "a listing tells more than what is remembered");
}

/// `git status` looks all names up in several threads, and then reads the files that have changed in the order
/// of their paths.
#[test]
fn files_that_are_read_after_all_names_were_looked_up_are_guessed_from_the_first_one_on() {
    let mut reader = Reader::new();
    reader.step("top", "", looked("f1"));
    reader.step("top", "", looked("f2"));
    reader.listed("top", &["a/", "b/", "f1", "f2"]);
    for (directory, names) in [("b", ["b1", "b2", "b3"]), ("a", ["a1", "a2", "a3"])] {
        names.iter().for_each(|name| reader.step(directory, "top", looked(name)));
        reader.listed(directory, &names);
    }
    reader.step("b", "top", looked("b2"));
    reader.guesses();
    reader.step("a", "top", opened("a1"));
    reader.step("a", "top", opened("a2"));
    assert_eq!(reader.guesses(), ["a3", "b1", "b2", "b3", "f1", "f2"]);
    // The reader has passed what it did not open.
    reader.step("b", "top", opened("b1"));
    assert!(!reader.walks.is_expected(&handle("a3")) && reader.walks.is_expected(&handle("b2")));
}

/// The reader goes down a deep and narrow tree, beside which many directories are guessed too early.
#[test]
fn a_reader_that_stays_deep_is_followed_although_its_siblings_were_guessed_too_early() {
    let mut reader = Reader::new();
    let siblings: Vec<String> = (0..200).map(|n| format!("s{n:03}/")).collect();
    let mut names = vec!["deep/"];
    names.extend(siblings.iter().map(String::as_str));
    reader.step("top", "", Action::Listed);
    reader.step("deep", "top", Action::Listed);
    reader.guesses();
    reader.listed("top", &names);
    let (mut at, mut missed) = ("deep".to_owned(), 0);
    reader.listed(&at, &["deep0/"]);
    for n in 0..150 {
        reader.guesses();
        reader.now += Duration::from_millis(30);
        let next = format!("deep{n}");
        missed += u32::from(!reader.walks.is_expected(&handle(&next)));
        reader.step(&next, &at, Action::Listed);
        reader.listed(&next, &[&format!("deep{}/", n + 1)]);
        at = next;
    }
    assert!(missed < 20, "{missed} of 150 listings did not come ahead");
}

/// When guesses are made again, several readers are all followed. A single one does not come back.
#[test]
fn guesses_begin_anew_in_front_of_each_reader() {
    let now = Instant::now();
    let mut walk = Walk::new(1, Caller::unix(1, 1, &[]), handle("top"), now);
    walk.listed(&handle("top"), &Arc::new(roster(&["a/", "m/", "z/"])), now);
    for directory in ["a", "m"] {
        walk.step(&step(directory, "top", Action::Listed), now);
        walk.listed(&handle(directory), &Arc::new(roster(&["one/", "two/"])), now);
    }
    for (depth_first, goes_on) in [(true, false), (false, true)] {
        walk.depth_first = depth_first;
        walk.rewind(DIRECTORIES);
        let mut cursors = walk.frontiers[DIRECTORIES].cursors.values();
        assert_eq!(cursors.any(|directory| *directory == handle("a")), goes_on);
        let mut cursors = walk.frontiers[DIRECTORIES].cursors.values();
        assert!(cursors.any(|directory| *directory == handle("m")));
    }
}
