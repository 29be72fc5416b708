//! An answer's text as it grows: whole characters, and nothing of a text to stop at.

#[derive(Default)]
pub struct Text {
    /// Bytes that are not released: half a character, or the beginning of a text to stop at.
    held: Vec<u8>,
    /// Bytes released so far.
    pub released: usize,
    /// Which of the texts to stop at has come.
    pub stopped: Option<usize>,
}

impl Text {
    /// Where the next bytes go; call `release` after adding some.
    pub fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.held
    }

    /// Bytes so far, held ones included.
    pub fn end(&self) -> usize {
        self.released + self.held.len()
    }

    /// Appends to `out` what surely belongs to the answer; `true`: a text to stop at has come, and
    /// everything before it is released.
    pub fn release(&mut self, stops: &[Vec<u8>], out: &mut String) -> bool {
        let places = stops.iter().enumerate();
        let found = places.filter_map(|(n, stop)| find(&self.held, stop).map(|start| (start, n)));
        if let Some((start, number)) = found.min() {
            self.held.truncate(start);
            self.stopped = Some(number);
            self.finish(out);
            return true;
        }
        let kept = stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let mut end = self.held.len() - kept;
        let mut start = 0;
        while start < end {
            match core::str::from_utf8(&self.held[start..end]) {
                Ok(text) => {
                    out.push_str(text);
                    start = end;
                }
                Err(error) => {
                    let valid = start + error.valid_up_to();
                    out.push_str(core::str::from_utf8(&self.held[start..valid]).unwrap_or(""));
                    start = valid;
                    match error.error_len() {
                        Some(wrong) => {
                            out.push('\u{fffd}');
                            start += wrong;
                        }
                        None => end = start, // half a character
                    }
                }
            }
        }
        self.held.drain(..start);
        self.released += start;
        false
    }

    /// Appends all that is left; half a character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.held));
        self.released += self.held.len();
        self.held.clear();
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// The length of the longest end of `text` that is a beginning of `stop`.
fn overlap(text: &[u8], stop: &[u8]) -> usize {
    let longest = text.len().min(stop.len());
    (1..=longest).rev().find(|n| text.ends_with(&stop[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(pieces: &[&[u8]], stops: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<Vec<u8>> = stops.iter().map(|stop| stop.as_bytes().to_vec()).collect();
        let mut text = Text::default();
        let mut seen = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            text.tail().extend_from_slice(piece);
            let stopped = text.release(&stops, &mut out);
            seen.push(out);
            if stopped {
                return (seen, true);
            }
        }
        let mut out = String::new();
        text.finish(&mut out);
        seen.push(out);
        (seen, false)
    }

    #[test]
    fn characters_are_whole() {
        let (seen, _) = grow(&[b"caf\xc3", b"\xa9!", b"\xf0\x9f", b"\x98", b"\x80"], &[]);
        assert_eq!(seen, ["caf", "\u{e9}!", "", "", "\u{1f600}", ""]);
        let (seen, _) = grow(&[b"\xff\xe2\x82", b"a\xe2"], &[]);
        assert_eq!(seen, ["\u{fffd}", "\u{fffd}a", "\u{fffd}"]);
    }

    #[test]
    fn a_text_to_stop_at_is_found_across_pieces_and_not_shown() {
        let (seen, stopped) = grow(&[b"one E", b"N", b"D two"], &["END"]);
        assert_eq!((seen, stopped), (vec!["one ".into(), "".into(), "".into()], true));
        let (seen, stopped) = grow(&[b"a E", b"NT END"], &["END", "never"]);
        assert_eq!((seen.concat(), stopped), ("a ENT ".into(), true));
    }

    #[test]
    fn false_starts_are_shown() {
        let (seen, stopped) = grow(&[b"x\n", b"y", b"\n"], &["\n\n"]);
        assert_eq!(
            (seen, stopped),
            (vec!["x".into(), "\ny".into(), "".into(), "\n".into()], false)
        );
    }

    #[test]
    fn the_earliest_of_several_counts() {
        let (seen, stopped) = grow(&[b"a two one"], &["one", "two"]);
        assert_eq!((seen.concat(), stopped), ("a ".into(), true));
    }

    #[test]
    fn the_text_that_has_come_is_known() {
        let stops: Vec<Vec<u8>> = ["two", "on", "one"].map(|stop| stop.into()).to_vec();
        let mut text = Text::default();
        text.tail().extend_from_slice(b"a ");
        assert!(!text.release(&stops, &mut String::new()));
        assert_eq!(text.stopped, None);
        text.tail().extend_from_slice(b"one two");
        assert!(text.release(&stops, &mut String::new()));
        assert_eq!(text.stopped, Some(1));
    }

    #[test]
    fn a_stop_of_many_bytes_is_not_split() {
        let (seen, stopped) = grow(&[b"x\xe2", b"\x82", b"\xacy"], &["\u{20ac}"]);
        assert_eq!((seen.concat(), stopped), ("x".into(), true));
    }
}
