//! Programs that go through a tree: each asks one question after the other, and pays a round trip for each
//! that is not answered here.
//!
//! Each phase is one program with a tree of its own, so that none reads what another has read. The trees
//! stand beside each other, so guesses for one program may reach into the tree of the next:
//!
//! | phase | does what | as |
//! |---|---|---|
//! | find | lists every directory, depth first | `find` |
//! | status | looks at the attributes of every known file in the order of names, then lists every directory and looks for a file of exclusions in it | `git status` |
//! | grep | lists every directory, and reads every file | `grep -r` |
//! | tar | the same, with the attributes of every file | `tar c` |
//! | import | imports half of the modules of Python packages: listings, attributes, and compiled files | `python -c import` |
//! | headers | opens headers in each directory of a search path until one has it | `cc -E` |
//! | render | reads the head of each texture of a scene, then tiles of them in random order | a renderer |
//!
//! At scale 1, a source tree has 1,800 files in 150 directories, 40 packages have 12 modules each, a search
//! path has 12 directories, and a scene has 60 textures of 2 MiB. The programs are imitations of our own, so
//! that they run without a mount too. They are no faster or slower than the system calls that they make.

use std::io;

use super::tree::put_large;
use super::{Plan, Run, STEP_BYTES, Workload, read_file, write_file};
use crate::random::Random;
use crate::target::{How, Target, make_all};

pub(super) const WORKLOAD: Workload = Workload {
    name: "walk",
    paper: "Badros",
    section: "5, the programs of a working day",
    about: "goes through trees as find, git status, grep, tar, an import, a compiler and a renderer do",
    clients: 1,
    restart: true,
    again: true,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: true,
    prepare,
    run,
};

/// The phases that go through a source tree.
const IN_SOURCES: [(&str, Program); 4] = [("find", find), ("status", status), ("grep", grep), ("tar", tar)];
const MODULES: u64 = 12;
/// Headers in each directory of the search path.
const HEADERS: u64 = 24;
/// Headers that one unit includes.
const INCLUDES: u64 = 10;
const TEXTURE_BYTES: u64 = 2 << 20;
const TILE_BYTES: usize = 64 << 10;
/// Tiles that are read of each texture.
const TILES: u64 = 6;

/// A program that goes through the tree below a directory.
type Program = fn(&dyn Target, &str) -> io::Result<()>;

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    for (number, (name, _)) in (1..).zip(IN_SOURCES) {
        put_sources(target, name, plan.count(150, 3), &mut plan.random(&[number]))?;
    }
    put_packages(target, packages(plan), &mut plan.random(&[11]))?;
    put_headers(target, search_path(plan), &mut plan.random(&[12]))?;
    let mut random = plan.random(&[13]);
    (0..textures(plan)).try_for_each(|at| put_large(target, &texture(at), TEXTURE_BYTES, &mut random))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    for (name, program) in IN_SOURCES {
        run.phase(name, |run| program(run.client(), name))?;
    }
    run.phase("import", |run| import(run.client(), &run.plan))?;
    run.phase("headers", |run| headers(run.client(), &run.plan))?;
    run.phase("render", |run| render(run.client(), &run.plan))
}

/// Writes a source tree: directories of three levels, 12 files in each.
fn put_sources(target: &dyn Target, at: &str, directories: u64, random: &mut Random) -> io::Result<()> {
    for directory in 0..directories {
        let path = match directory {
            0 => at.to_owned(),
            _ if directory % 3 == 0 => format!("{at}/d{:03}", directory / 3),
            _ => format!("{at}/d{:03}/e{directory:03}", directory / 3),
        };
        make_all(target, &path)?;
        for file in 0..12 {
            let bytes = (random.exponential(6000.0) as usize).clamp(100, 60_000);
            write_file(target, &format!("{path}/f{file:02}.c"), &random.bytes(bytes), STEP_BYTES)?;
        }
    }
    Ok(())
}

/// Visits every directory below one, depth first, and the files of each before the directories in it.
fn visit(target: &dyn Target, at: &str, file: &mut dyn FnMut(&str) -> io::Result<()>) -> io::Result<()> {
    let mut stack = vec![at.to_owned()];
    while let Some(directory) = stack.pop() {
        let mut below = Vec::new();
        for entry in target.list(&directory)? {
            let path = format!("{directory}/{}", entry.name);
            if entry.is_dir { below.push(path) } else { file(&path)? }
        }
        below.reverse();
        stack.append(&mut below);
    }
    Ok(())
}

fn find(target: &dyn Target, at: &str) -> io::Result<()> {
    visit(target, at, &mut |_| Ok(()))
}

fn grep(target: &dyn Target, at: &str) -> io::Result<()> {
    visit(target, at, &mut |file| read_file(target, file).map(drop))
}

fn tar(target: &dyn Target, at: &str) -> io::Result<()> {
    visit(target, at, &mut |file| {
        target.stat(file)?;
        read_file(target, file).map(drop)
    })
}

/// The names of the files come from a local file, the index of git. Here the directories that hold them are
/// counted up until one is missing.
fn status(target: &dyn Target, at: &str) -> io::Result<()> {
    let mut directories = vec![at.to_owned()];
    for number in 1u64.. {
        let top = format!("{at}/d{:03}", number / 3);
        let path = if number % 3 == 0 { top } else { format!("{top}/e{number:03}") };
        match target.stat(&format!("{path}/f00.c")) {
            Ok(_) => directories.push(path.clone()),
            Err(error) if is_absent(&error) => break,
            Err(error) => return Err(error),
        }
        for file in 1..12 {
            target.stat(&format!("{path}/f{file:02}.c"))?;
        }
    }
    for directory in directories {
        match target.open(&format!("{directory}/.gitignore"), How::Read) {
            Ok(file) => file.close()?,
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
        }
        target.list(&directory)?;
    }
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn packages(plan: &Plan) -> u64 {
    plan.count(40, 2)
}

fn compiled(package: u64, module: &str) -> String {
    format!("python/p{package:03}/__pycache__/{module}.cpython-313.pyc")
}

fn module(number: u64) -> String {
    format!("m{number:02}")
}

fn put_packages(target: &dyn Target, packages: u64, random: &mut Random) -> io::Result<()> {
    for package in 0..packages {
        make_all(target, &format!("python/p{package:03}/__pycache__"))?;
        for name in (0..MODULES).map(module).chain(["__init__".to_owned()]) {
            let bytes = (random.exponential(8000.0) as usize).clamp(200, 80_000);
            let source = format!("python/p{package:03}/{name}.py");
            write_file(target, &source, &random.bytes(bytes), STEP_BYTES)?;
            write_file(target, &compiled(package, &name), &random.bytes(bytes), STEP_BYTES)?;
        }
    }
    Ok(())
}

/// Imports every second module, in random order. As importlib does: it lists a directory once, and looks at
/// the source before it reads the compiled file.
fn import(target: &dyn Target, plan: &Plan) -> io::Result<()> {
    let mut random = plan.random(&[21]);
    let mut wanted: Vec<(u64, u64)> = (0..packages(plan))
        .flat_map(|package| (0..MODULES).step_by(2).map(move |at| (package, at)))
        .collect();
    shuffle(&mut wanted, &mut random);
    let mut listed = vec![false; packages(plan) as usize];
    target.list("python")?;
    for (package, number) in wanted {
        let at = format!("python/p{package:03}");
        let load = |name: &str| {
            target.stat(&format!("{at}/{name}.py"))?;
            read_file(target, &compiled(package, name)).map(drop)
        };
        if !std::mem::replace(&mut listed[package as usize], true) {
            target.stat(&at)?;
            load("__init__")?;
            target.stat(&at)?;
            target.list(&at)?;
        }
        load(&module(number))?;
    }
    Ok(())
}

fn shuffle<T>(list: &mut [T], random: &mut Random) {
    for at in (1..list.len()).rev() {
        list.swap(at, random.below(at as u64 + 1) as usize);
    }
}

fn search_path(plan: &Plan) -> u64 {
    plan.count(12, 3)
}

fn header(directory: u64, number: u64) -> String {
    format!("include/i{directory:02}/h{number:02}-{directory:02}.h")
}

fn put_headers(target: &dyn Target, directories: u64, random: &mut Random) -> io::Result<()> {
    for directory in 0..directories {
        make_all(target, &format!("include/i{directory:02}"))?;
        for number in 0..HEADERS {
            let bytes = (random.exponential(3000.0) as usize).clamp(200, 30_000);
            write_file(target, &header(directory, number), &random.bytes(bytes), STEP_BYTES)?;
        }
    }
    Ok(())
}

/// Looks for the headers of some units in each directory of the search path, in its order.
fn headers(target: &dyn Target, plan: &Plan) -> io::Result<()> {
    let (mut random, directories) = (plan.random(&[22]), search_path(plan));
    for _ in 0..plan.count(40, 2) * INCLUDES {
        let (home, number) = (random.below(directories), random.below(HEADERS));
        for directory in 0..=home {
            let path = format!("include/i{directory:02}/h{number:02}-{home:02}.h");
            match read_file(target, &path) {
                Ok(_) => {}
                Err(error) if is_absent(&error) && directory < home => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn textures(plan: &Plan) -> u64 {
    plan.count(60, 3)
}

fn texture(number: u64) -> String {
    format!("scene/t{}/texture{number:03}.tx", number % 4)
}

/// Two thirds of the textures are used.
fn render(target: &dyn Target, plan: &Plan) -> io::Result<()> {
    let mut random = plan.random(&[23]);
    let mut used: Vec<u64> = (0..textures(plan)).filter(|number| number % 3 != 2).collect();
    shuffle(&mut used, &mut random);
    let mut tile = vec![0; TILE_BYTES];
    let mut files = Vec::new();
    for number in &used {
        target.stat(&texture(*number))?;
        let mut file = target.open(&texture(*number), How::Read)?;
        file.read_at(&mut tile, 0)?;
        files.push(file);
    }
    for _ in 0..TILES {
        for file in &mut files {
            let offset = random.below(TEXTURE_BYTES / TILE_BYTES as u64) * TILE_BYTES as u64;
            file.read_at(&mut tile, offset)?;
        }
    }
    files.into_iter().try_for_each(crate::target::OpenFile::close)
}
