//! A C program of many files, generated from a seed, so that no third party's sources are needed.
//!
//! Any C compiler builds it (`cc -I include -c`). The only system header is `stdio.h`, in one unit. The
//! program prints a number that is known here. Headers include headers, and units include several headers. As
//! in real projects, the compiler looks for nearly every header beside the unit first and finds it under
//! `include/`.

use std::fmt::Write;

use crate::random::Random;

/// The directory of the headers.
pub const INCLUDE: &str = "include";
/// The unit that has `main`.
const MAIN: &str = "main.c";

/// A source tree: paths and texts.
#[derive(Clone, Debug)]
pub struct Source {
    /// Directories, parents first.
    pub directories: Vec<String>,
    /// Headers: path and text.
    pub headers: Vec<(String, String)>,
    /// Units to compile: path and text. The main unit is last.
    pub units: Vec<(String, String)>,
    /// The number that the program prints.
    pub prints: u32,
}

/// The size of a source tree.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of units without the main one.
    pub units: usize,
    /// Number of headers.
    pub headers: usize,
    /// Number of directories for the units, apart from `include`.
    pub directories: usize,
    /// Functions per unit.
    pub functions: usize,
}

/// One step of arithmetic, in C and in Rust.
#[derive(Clone, Copy)]
struct Step {
    multiply: u32,
    add: u32,
    shift: u32,
}

impl Step {
    fn new(random: &mut Random) -> Step {
        Step {
            multiply: random.between(3, 99_999) as u32 | 1,
            add: random.between(1, 99_999) as u32,
            shift: random.between(1, 15) as u32,
        }
    }

    fn apply(self, x: u32) -> u32 {
        let y = x.wrapping_mul(self.multiply).wrapping_add(self.add);
        y ^ (y >> self.shift)
    }
}

impl Source {
    /// Generates a tree.
    pub fn generate(seed: u64, size: Size) -> Source {
        let mut random = Random::part(seed, &[0x0050_7263]);
        let headers: Vec<(String, String, Step)> =
            (0..size.headers).map(|number| header(number, &mut random)).collect();
        let mut directories = vec![INCLUDE.to_owned()];
        directories.extend((0..size.directories.max(1)).map(|number| format!("part{number:02}")));
        let mut units = Vec::new();
        let mut prints = 1u32;
        for number in 0..size.units {
            let directory = &directories[1 + number % size.directories.max(1)];
            let (text, result) = unit(number, prints, &headers, size.functions, &mut random);
            units.push((format!("{directory}/unit{number:04}.c"), text));
            prints = result;
        }
        units.push((MAIN.to_owned(), main_unit(size.units)));
        let headers = headers.into_iter().map(|(path, text, _)| (path, text)).collect();
        Source { directories, headers, units, prints }
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = &(String, String)> {
        self.headers.iter().chain(&self.units)
    }

    /// Total size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files().map(|(_, text)| text.len() as u64).sum()
    }
}

fn header_name(number: usize) -> String {
    format!("part{number:04}.h")
}

/// A header with one step of arithmetic, which includes up to two headers of lower numbers.
fn header(number: usize, random: &mut Random) -> (String, String, Step) {
    let step = Step::new(random);
    let mut text = format!("#ifndef PART{number:04}_H\n#define PART{number:04}_H\n");
    for _ in 0..random.below(3).min(number as u64) {
        let _ = writeln!(text, "#include \"{}\"", header_name(random.below(number as u64) as usize));
    }
    let Step { multiply, add, shift } = step;
    for field in 0..random.between(4, 24) {
        let _ =
            writeln!(text, "/* Field {field} of what part {number} keeps: {:08x} */", random.word() as u32);
    }
    let _ = write!(
        text,
        "struct part{number:04} {{ unsigned value; unsigned history[{}]; }};\n\
         static unsigned part{number:04}_step(unsigned x)\n{{\n    unsigned y = x * {multiply}u + {add}u;\n    \
         return y ^ (y >> {shift});\n}}\n#endif\n",
        random.between(2, 9),
    );
    (format!("{INCLUDE}/{}", header_name(number)), text, step)
}

/// A unit that includes some headers and applies their steps. Returns the text, and the result for this
/// argument.
fn unit(
    number: usize,
    argument: u32,
    headers: &[(String, String, Step)],
    functions: usize,
    random: &mut Random,
) -> (String, u32) {
    let count = headers.len() as u64;
    let used: Vec<usize> =
        (0..random.between(3, 10).min(count)).map(|_| random.below(count) as usize).collect();
    let mut text = format!("/* Unit {number}. */\n");
    used.iter().for_each(|&part| {
        let _ = writeln!(text, "#include \"{}\"", header_name(part));
    });
    let mut x = argument;
    let mut calls = String::new();
    for function in 0..functions.max(1) {
        let own = Step::new(random);
        let Step { multiply, add, shift } = own;
        let _ = write!(
            text,
            "\n/* Step {function}: {:016x} */\nstatic unsigned step{function}(unsigned x)\n{{\n    \
             unsigned y = x * {multiply}u + {add}u;\n    y ^= y >> {shift};\n",
            random.word(),
        );
        x = own.apply(x);
        for &part in used.iter().skip(function % 2).step_by(2) {
            let _ = writeln!(text, "    y = part{part:04}_step(y);");
            x = headers[part].2.apply(x);
        }
        text.push_str("    return y;\n}\n");
        let _ = writeln!(calls, "    x = step{function}(x);");
    }
    let _ = write!(text, "\nunsigned unit{number:04}(unsigned x)\n{{\n{calls}    return x;\n}}\n");
    (text, x)
}

fn main_unit(units: usize) -> String {
    let mut text = String::from("#include <stdio.h>\n");
    (0..units).for_each(|number| {
        let _ = writeln!(text, "unsigned unit{number:04}(unsigned x);");
    });
    text.push_str("\nint main(void)\n{\n    unsigned x = 1;\n");
    (0..units).for_each(|number| {
        let _ = writeln!(text, "    x = unit{number:04}(x);");
    });
    text.push_str("    printf(\"%u\\n\", x);\n    return 0;\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const SIZE: Size = Size { units: 8, headers: 12, directories: 3, functions: 3 };

    #[test]
    fn a_seed_always_makes_the_same_tree() {
        let [one, again, other] = [1, 1, 2].map(|seed| Source::generate(seed, SIZE));
        assert!(one.units == again.units && one.headers == again.headers && one.units != other.units);
        assert_eq!((one.units.len(), one.headers.len(), one.directories.len()), (9, 12, 4));
    }

    #[test]
    fn the_tree_compiles_and_computes_what_it_should() {
        let source = Source::generate(42, SIZE);
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        source.directories.iter().for_each(|name| std::fs::create_dir(path(name)).unwrap());
        source.files().for_each(|(name, text)| std::fs::write(path(name), text).unwrap());
        let units = source.units.iter().map(|(name, _)| name);
        let arguments = ["-Wall", "-Werror", "-Wno-unused-function", "-I", INCLUDE, "-o", "program"];
        let compiled =
            Command::new("cc").args(arguments).args(units).current_dir(directory.path()).output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let output = Command::new(path("program")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), source.prints.to_string());
    }
}
