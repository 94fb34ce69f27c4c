//! Number text as ECMAScript prints it, which is what RFC 8785 asks for.

use super::error::Refusal;
use crate::limits::INTEGER_MAX;

/// Appends an integer; beyond +-(2^53-1) it is refused.
pub(super) fn write_int(out: &mut Vec<u8>, n: i64) -> Result<(), Refusal> {
    if !(-INTEGER_MAX..=INTEGER_MAX).contains(&n) {
        return Err(Refusal::IntegerTooLarge);
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = n.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if n < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
    Ok(())
}

/// Appends a double in its shortest ECMAScript form; NaN and infinities are refused.
pub(super) fn write_float(out: &mut Vec<u8>, x: f64) -> Result<(), Refusal> {
    if !x.is_finite() {
        return Err(Refusal::NotFinite);
    }
    out.extend_from_slice(ryu_js::Buffer::new().format_finite(x).as_bytes());
    Ok(())
}

/// A number read from JSON text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

/// Reads a token that already has JSON's number grammar.
///
/// An integer token beyond 2^53-1 is a double only if it is that double's own ECMAScript text, so
/// that what the encoder wrote can be read back and nothing is rounded in silence.
pub(super) fn read(token: &str) -> Result<Number, Refusal> {
    let integral = !token.bytes().any(|b| matches!(b, b'.' | b'e' | b'E'));
    if integral
        && let Ok(n) = token.parse::<i64>()
        && (-INTEGER_MAX..=INTEGER_MAX).contains(&n)
    {
        return Ok(Number::Int(n));
    }
    let x: f64 = token.parse().map_err(|_| Refusal::NumberOutOfRange)?;
    if integral {
        return if ryu_js::Buffer::new().format(x) == token {
            Ok(Number::Float(x))
        } else {
            Err(Refusal::IntegerTooLarge)
        };
    }
    if !x.is_finite() {
        return Err(Refusal::NumberOutOfRange);
    }
    Ok(as_int(x).map_or(Number::Float(x), Number::Int))
}

/// The integer that a double is, if it is one that stays exact: `1.0` and `1` are one JSON value.
pub(super) fn as_int(x: f64) -> Option<i64> {
    let text = ryu_js::Buffer::new().format(x).parse::<i64>().ok()?;
    (-INTEGER_MAX..=INTEGER_MAX).contains(&text).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(x: f64) -> String {
        let mut out = Vec::new();
        write_float(&mut out, x).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers_print_plainly_up_to_the_exact_range() {
        for n in [0, 1, -1, 9, 10, -10, 1999, INTEGER_MAX, -INTEGER_MAX] {
            let mut out = Vec::new();
            write_int(&mut out, n).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), n.to_string());
        }
        for n in [INTEGER_MAX + 1, -INTEGER_MAX - 1, i64::MAX, i64::MIN] {
            assert_eq!(write_int(&mut Vec::new(), n), Err(Refusal::IntegerTooLarge));
        }
    }

    #[test]
    fn doubles_print_as_ecmascript_does() {
        assert_eq!(float(-0.0), "0");
        assert_eq!(float(1e21), "1e+21");
        assert_eq!(float(1e20), "100000000000000000000");
        assert_eq!(float(1e-7), "1e-7");
        assert_eq!(float(0.000_001), "0.000001");
        assert_eq!(float(4.50), "4.5");
    }

    #[test]
    fn a_large_integer_token_is_read_only_if_it_is_a_doubles_own_text() {
        assert_eq!(read("9007199254740991"), Ok(Number::Int(INTEGER_MAX)));
        assert_eq!(read("9007199254740992"), Ok(Number::Float(9_007_199_254_740_992.0)));
        assert_eq!(read("9007199254740993"), Err(Refusal::IntegerTooLarge));
        assert_eq!(read("100000000000000000000"), Ok(Number::Float(1e20)));
        assert_eq!(read("1000000000000000000000"), Err(Refusal::IntegerTooLarge));
        assert_eq!(read("1e400"), Err(Refusal::NumberOutOfRange));
        assert_eq!(read("1.0"), Ok(Number::Int(1)));
        assert_eq!(read("-0"), Ok(Number::Int(0)));
        assert_eq!(read("-0.0"), Ok(Number::Int(0)));
    }
}
