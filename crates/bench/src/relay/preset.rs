//! Named networks, so that results of different days are for the same network.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Options;

/// A named round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// 0.2 ms: one building.
    Lan,
    /// 5 ms: one city.
    Metro,
    /// 20 ms: one country.
    Region,
    /// 75 ms: California to New York, as in the Nache paper.
    Wan,
    /// 200 ms: the other side of the world, and the longest delay of the NQNFS paper.
    Far,
}

impl Preset {
    /// All presets, the nearest first.
    pub const ALL: [Preset; 5] = [Preset::Lan, Preset::Metro, Preset::Region, Preset::Wan, Preset::Far];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Lan => "lan",
            Preset::Metro => "metro",
            Preset::Region => "region",
            Preset::Wan => "wan",
            Preset::Far => "far",
        }
    }

    /// Its round trip.
    pub fn rtt(self) -> Duration {
        Duration::from_micros(match self {
            Preset::Lan => 200,
            Preset::Metro => 5_000,
            Preset::Region => 20_000,
            Preset::Wan => 75_000,
            Preset::Far => 200_000,
        })
    }

    /// The options of a relay with this round trip.
    pub fn options(self) -> Options {
        Options::rtt(self.rtt())
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses a round trip: the name of a preset, or milliseconds.
///
/// # Errors
/// One line that lists the accepted values.
pub fn parse_rtt(text: &str) -> Result<Duration, String> {
    if let Ok(preset) = Preset::from_str(text) {
        return Ok(preset.rtt());
    }
    let milliseconds = text.strip_suffix("ms").unwrap_or(text).parse::<f64>();
    let possible = milliseconds.ok().filter(|milliseconds| (0.0..=10_000.0).contains(milliseconds));
    possible.map(|milliseconds| Duration::from_secs_f64(milliseconds / 1000.0)).ok_or_else(|| {
        format!("`{text}` is no round trip: write lan, metro, region, wan, far, or milliseconds up to 10000")
    })
}

impl FromStr for Preset {
    type Err = String;
    fn from_str(text: &str) -> Result<Preset, String> {
        let found = Preset::ALL.into_iter().find(|preset| preset.name() == text);
        found.ok_or_else(|| format!("`{text}` is no network: known are lan, metro, region, wan, far"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_names_or_milliseconds() {
        let read =
            ["lan", "metro", "region", "wan", "far", "1.5", "30ms"].map(|text| parse_rtt(text).unwrap());
        let micros = read.map(|rtt| rtt.as_micros());
        assert_eq!(micros, [200, 5_000, 20_000, 75_000, 200_000, 1_500, 30_000]);
        assert!(["", "moon", "-1", "1e9", "NaN"].iter().all(|text| parse_rtt(text).is_err()));
    }
}
