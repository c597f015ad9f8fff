//! What day it is, for chat templates that tell it to their model. In UTC: the system's own time is not asked for.

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A time as a format of Python's `strftime` has it. `seconds`: since 1970. What is not known stays as it is.
pub fn date(seconds: u64, format: &str) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let part = match chars.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.into(),
            Some('b') => month_name[..3].into(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('A') => day_name.into(),
            Some('a') => day_name[..3].into(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('%') => "%".into(),
            Some(other) => format!("%{other}"),
            None => "%".into(),
        };
        text.push_str(&part);
    }
    text
}

/// Year, month and day, so many days after the first of 1970. Each year is counted from its first of March, so that the day
/// that is sometimes there comes last; and 400 years have 146,097 days, always.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_as_python_writes_it() {
        let all = "%Y-%m-%d %H:%M:%S %y %B %b %e %A %a %I %p %% %q %";
        assert_eq!(date(0, all), "1970-01-01 00:00:00 70 January Jan  1 Thursday Thu 12 AM % %q %");
        assert_eq!(date(1_709_210_096, all), "2024-02-29 12:34:56 24 February Feb 29 Thursday Thu 12 PM % %q %");
        assert_eq!(date(4_102_444_799, "%A %d %B %Y %I%p"), "Thursday 31 December 2099 11PM");
    }

    #[test]
    fn no_day_is_left_out() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..200_000 {
            assert_eq!(civil(days), (year, month, day), "{days}");
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
            day += 1;
            if day > last {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }
}
