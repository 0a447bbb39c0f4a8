//! Other locations of an export: `refer=` and `replicas=` of exports(5). v4 clients get them as
//! `fs_locations` (RFC 8881, section 11).
//!
//! The format is `PATH@HOST[+HOST…][:PATH@HOST…]`. Paths are those that clients of the hosts mount; hosts
//! are names or addresses. An IPv6 address is in brackets, because colons separate locations.

use std::fmt;
use std::str::FromStr;

/// Locations, in the order in which clients should try them. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locations(Vec<Location>);

/// One location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The components of its path, from the root of the name space there.
    pub path: Vec<String>,
    /// The servers that have it there: names, or addresses without brackets.
    pub hosts: Vec<String>,
}

/// The most locations, and the most hosts of one location: the limits of `fs_locations`.
const MAX: usize = 64;
/// Bytes of a path component, and of a host.
const NAME_MAX_BYTES: usize = 255;

impl Locations {
    /// A list of these; none if there are too many, or if one has no path or no host that clients could use.
    pub fn of(locations: Vec<Location>) -> Option<Locations> {
        let is_name = |text: &String| !text.is_empty() && text.len() <= NAME_MAX_BYTES;
        let is_usable = |location: &Location| {
            !location.hosts.is_empty()
                && location.hosts.len() <= MAX
                && location.hosts.iter().chain(&location.path).all(is_name)
        };
        let is_list = locations.len() <= MAX && locations.iter().all(is_usable);
        is_list.then_some(Locations(locations))
    }

    /// Is the list empty?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All locations.
    pub fn iter(&self) -> impl Iterator<Item = &Location> {
        self.0.iter()
    }
}

impl FromStr for Locations {
    type Err = String;

    fn from_str(text: &str) -> Result<Locations, String> {
        let bad =
            || format!("`{text}` is no list of places: write PATH@HOST[+HOST…][:PATH@HOST…], PATH from / on");
        let places = split_outside_brackets(text);
        let locations: Option<Vec<Location>> = places.into_iter().map(location).collect();
        locations.filter(|locations| locations.len() <= MAX).map(Locations).ok_or_else(bad)
    }
}

/// Splits at colons that are not part of an address.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|letter| {
        inside = (inside || letter == '[') && letter != ']';
        letter == ':' && !inside
    })
    .collect()
}

fn location(text: &str) -> Option<Location> {
    // A path may contain an `@`.
    let (path, hosts) = text.rsplit_once('@')?;
    let names = path.strip_prefix('/')?.split('/').filter(|name| !name.is_empty());
    let path: Vec<String> = names.map(str::to_owned).collect();
    let hosts: Vec<String> = hosts.split('+').map(host).collect::<Option<_>>()?;
    let fits = |name: &String| name.len() <= NAME_MAX_BYTES && name != "." && name != "..";
    (hosts.len() <= MAX && path.iter().chain(&hosts).all(fits)).then_some(Location { path, hosts })
}

fn host(text: &str) -> Option<String> {
    let bare = text.strip_prefix('[').map_or(Some(text), |rest| rest.strip_suffix(']'))?;
    let is_plain =
        !bare.is_empty() && !bare.contains(|letter: char| letter.is_whitespace() || "[]/".contains(letter));
    is_plain.then(|| bare.to_owned())
}

impl fmt::Display for Locations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, location) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ":" };
            write!(f, "{separator}{location}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}@", self.path.join("/"))?;
        for (at, host) in self.hosts.iter().enumerate() {
            let separator = if at == 0 { "" } else { "+" };
            if host.contains(':') {
                write!(f, "{separator}[{host}]")?;
            } else {
                write!(f, "{separator}{host}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_are_written_as_in_exports5() {
        let list: Locations = "/srv/a@one+192.0.2.7:/@[2001:db8::1]:/odd@name@two".parse().unwrap();
        let seen: Vec<(String, String)> =
            list.iter().map(|place| (place.path.join("|"), place.hosts.join("|"))).collect();
        let is = |path: &str, hosts: &str| (path.to_owned(), hosts.to_owned());
        assert_eq!(seen, [is("srv|a", "one|192.0.2.7"), is("", "2001:db8::1"), is("odd@name", "two")]);
        for bad in
            ["", "/srv", "srv@host", "/srv@", "/srv@a+", "/srv@a:", "@a", "/srv@a b", "/a/../b@h", "/s@[::1"]
        {
            let error = bad.parse::<Locations>().unwrap_err();
            assert!(error.contains("PATH@HOST"), "{bad}: {error}");
        }
        assert!(vec!["/a@b"; MAX].join(":").parse::<Locations>().is_ok());
        assert!(vec!["/a@b"; MAX + 1].join(":").parse::<Locations>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_again(text in "(/[a-c@]{0,3}){1,3}@(\\[[0-9a-f:]{2,5}\\]|[a-z.]{1,4})(\\+[a-z]{1,3})?(:/x@y)?") {
            if let Ok(list) = text.parse::<Locations>() {
                prop_assert_eq!(list.to_string().parse::<Locations>().unwrap(), list);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Locations>();
        }
    }
}
