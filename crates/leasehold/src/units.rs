//! Numbers as a person reads them: counts, bytes, ages and shares.

/// A number with the noun in its singular or plural.
pub fn counted(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { more })
}

/// A number with a comma before each three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number of bytes in a short form, in powers of 1,024.
pub fn human(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["", "K", "M", "G", "T"] {
        if size < 1000.0 {
            return if unit.is_empty() || size >= 100.0 {
                format!("{size:.0}{unit}")
            } else {
                format!("{size:.1}{unit}")
            };
        }
        size /= 1024.0;
    }
    format!("{size:.1}P")
}

/// An age in seconds in a short form, rounded down.
pub fn ago(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A part of a sum, in percent rounded down, so that 100 % means all. `-` if the sum is zero.
pub fn percent(part: u64, sum: u64) -> String {
    let Some(share) = (u128::from(part) * 100).checked_div(u128::from(sum)) else { return "-".to_owned() };
    format!("{share} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ages_and_shares_are_short() {
        let sizes = [0, 999, 1000, 4096, 150 << 20, 5 << 40].map(human);
        assert_eq!(sizes, ["0", "999", "1.0K", "4.0K", "150M", "5.0T"]);
        assert_eq!([5, 300, 8000, 200_000].map(ago), ["5 s", "5 min", "2 h", "2 days"]);
        assert_eq!(
            [(0, 0), (999, 1000), (7, 7)].map(|(part, sum)| percent(part, sum)),
            ["-", "99 %", "100 %"]
        );
        assert_eq!(percent(u64::MAX, u64::MAX), "100 %");
    }

    #[test]
    fn a_long_number_has_commas() {
        let numbers = [0, 999, 1000, 1_234_567, u64::MAX].map(grouped);
        assert_eq!(numbers, ["0", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]);
        assert_eq!(counted(1, "file", "files"), "1 file");
        assert_eq!(counted(1200, "file", "files"), "1,200 files");
    }
}
