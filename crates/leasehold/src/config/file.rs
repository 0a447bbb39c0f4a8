//! A configuration file, and the places in it that messages name.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeTable;

use crate::Failure;

/// The largest file that is read, in bytes.
const SIZE_MAX: u64 = 1 << 20;

/// A file that has been read.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is too large, or is not text.
    pub fn load(path: &Path) -> Result<ConfigFile, Failure> {
        let failed = |why: &dyn Display| {
            Failure(format!("cannot read {}: {why}; name a file that this user may read", path.display()))
        };
        let file = File::open(path).map_err(|error| failed(&error))?;
        let mut text = String::new();
        file.take(SIZE_MAX + 1).read_to_string(&mut text).map_err(|error| failed(&error))?;
        if text.len() as u64 > SIZE_MAX {
            return Err(failed(&format_args!("it has more than {SIZE_MAX} bytes")));
        }
        Ok(ConfigFile { path: path.to_owned(), text })
    }

    /// A file with this text.
    #[cfg(test)]
    pub fn of(path: &str, text: &str) -> ConfigFile {
        ConfigFile { path: path.into(), text: text.to_owned() }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its keys and values.
    ///
    /// # Errors
    /// If it is not TOML.
    pub fn table(&self) -> Result<DeTable<'_>, Failure> {
        DeTable::parse(&self.text).map(Spanned::into_inner).map_err(|error| self.not_toml(&error))
    }

    /// The message for a text that is not what it has to be.
    pub fn not_toml(&self, error: &toml::de::Error) -> Failure {
        self.wrong(error.span().map_or(0, |span| span.start), error.message())
    }

    /// The message for a mistake at this byte of the text: `FILE:LINE:COLUMN: MESSAGE`.
    pub fn wrong(&self, at: usize, message: impl Display) -> Failure {
        let before = self.text.get(..at).unwrap_or_default();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let message = message.to_string().replace('\n', " ");
        Failure(format!("{}:{}:{column}: {message}", self.path.display(), self.line(at)))
    }

    /// The message for something that the file lacks.
    pub fn lacks(&self, message: impl Display) -> Failure {
        Failure(format!("{}: {message}", self.path.display()))
    }

    /// The line of this byte of the text, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.text.get(..at).unwrap_or_default().matches('\n').count() + 1
    }
}
