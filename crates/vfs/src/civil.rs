//! Dates of the Gregorian calendar.

/// Seconds of a day.
const DAY_SECONDS: u64 = 86_400;

/// Year, month, day, hour, minute and second (UTC) at so many seconds after 1970-01-01.
pub fn civil(seconds: u64) -> [u64; 6] {
    let [year, month, day] = date(seconds / DAY_SECONDS);
    let seconds = seconds % DAY_SECONDS;
    [year, month, day, seconds / 3600, seconds / 60 % 60, seconds % 60]
}

/// The date that is so many days after 1970-01-01. The computation begins each year in March, and each era of
/// 400 years (146,097 days) in the year 0.
fn date(days: u64) -> [u64; 3] {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, year) = (day - (153 * month + 2) / 5 + 1, era * 400 + year);
    if month < 10 { [year, month + 3, day] } else { [year + 1, month - 9, day] }
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn dates_are_civil() {
        assert_eq!(civil(0), [1970, 1, 1, 0, 0, 0]);
        assert_eq!(civil(951_782_400), [2000, 2, 29, 0, 0, 0]);
        assert_eq!(civil(1_795_676_643), [2026, 11, 26, 7, 4, 3]);
        assert_eq!(civil(4_102_444_799), [2099, 12, 31, 23, 59, 59]);
    }
}
