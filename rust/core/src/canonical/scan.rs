//! Finding where things end in JSON text that is known, or checked elsewhere, to be well formed.

/// The closing quote of the string that opens at `at`; nothing if none opens there or it does not end.
pub(crate) fn string_end(text: &[u8], at: usize) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let zero_byte = |x: u64| x.wrapping_sub(ONES) & !x & HIGH;
    let mut end = at + 1;
    loop {
        // Eight bytes at a time while none of them can matter.
        while let Some(chunk) = text.get(end..).and_then(|rest| rest.first_chunk::<8>()) {
            let word = u64::from_le_bytes(*chunk);
            if zero_byte(word ^ (ONES * 0x22)) | zero_byte(word ^ (ONES * 0x5C)) != 0 {
                break;
            }
            end += 8;
        }
        match text.get(end)? {
            b'"' => return Some(end),
            b'\\' => end += 2,
            _ => end += 1,
        }
    }
}

/// Where the value that begins at `at` ends.
pub(crate) fn value_end(text: &[u8], at: usize) -> Option<usize> {
    match text.get(at)? {
        b'{' | b'[' => nested_end(text, at),
        b'"' => string_end(text, at).map(|quote| quote + 1),
        _ => {
            let rest = text[at..].iter().position(|byte| matches!(byte, b',' | b'}' | b']'));
            Some(rest.map_or(text.len(), |length| at + length))
        }
    }
}

/// Where the array or object that begins at `at` ends.
fn nested_end(text: &[u8], at: usize) -> Option<usize> {
    let (mut depth, mut at) = (0usize, at);
    while let Some(byte) = text.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            b'"' => at = string_end(text, at)?,
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_behind_quotes_escapes_and_brackets_of_any_length() {
        for length in 0..20 {
            let inner = "x".repeat(length);
            for string in [format!("\"{inner}\""), format!("\"{inner}\\\"]}}\""), format!("\"\\\\{inner}\"")]
            {
                let text = format!("[{string},1]");
                assert_eq!(string_end(text.as_bytes(), 1), Some(string.len()), "{text}");
                assert_eq!(value_end(text.as_bytes(), 1), Some(1 + string.len()), "{text}");
                assert_eq!(value_end(text.as_bytes(), 0), Some(text.len()), "{text}");
                assert_eq!(value_end(&text.as_bytes()[..text.len() - 1], 0), None, "{text}");
            }
        }
        assert_eq!(value_end(b"17,", 0), Some(2));
        assert_eq!(value_end(b"17", 0), Some(2));
        assert_eq!(string_end(b"17", 0), None);
        assert_eq!(string_end(b"\"a\\", 0), None);
    }
}
