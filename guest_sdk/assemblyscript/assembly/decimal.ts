/** 10^22 is the largest power of ten that a double holds exactly. */
const STEP: i32 = 22;
const EXPONENT_MAX: i32 = 100_000; // past it every number is 0 or infinite, however many digits it has

/**
 * The value of a decimal number, up to its last bits: `-12.5e-3`, as JSON spells numbers.
 *
 * `F64.parseFloat` of AssemblyScript 0.28.20 loses powers of ten where there are 17 digits and an exponent
 * (3.2357486198741123e+47 becomes ..e+38), so it is not used.
 */
export function decimal(text: string): f64 {
  let at = 0;
  const negative = text.length > 0 && text.charCodeAt(0) == 0x2d;
  if (negative) at++;
  let digits: u64 = 0; // the first 19, which fit
  let exponent: i32 = 0;
  let point = false;
  for (; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit == 0x2e) {
      point = true;
      continue;
    }
    if (unit < 0x30 || unit > 0x39) break;
    const fits = digits < 1_000_000_000_000_000_000;
    if (fits) digits = digits * 10 + (unit - 0x30);
    if (point == fits) exponent += fits ? -1 : 1; // a digit behind the point, or one left out before it
  }
  if (at < text.length) exponent += written(text, at + 1);
  const size = scaled(<f64>digits, exponent);
  return negative ? -size : size;
}

/** The exponent that is written behind the `e`. */
function written(text: string, at: i32): i32 {
  const negative = text.charCodeAt(at) == 0x2d;
  if (negative || text.charCodeAt(at) == 0x2b) at++;
  let value: i32 = 0;
  for (; at < text.length; at++) value = min(value * 10 + (text.charCodeAt(at) - 0x30), EXPONENT_MAX);
  return negative ? -value : value;
}

/** value * 10^exponent, in steps that are exact powers. */
function scaled(value: f64, exponent: i32): f64 {
  if (value == 0) return 0;
  for (; exponent > STEP && value < Infinity; exponent -= STEP) value *= 1e22;
  for (; exponent < -STEP && value > 0; exponent += STEP) value /= 1e22;
  let power: f64 = 1;
  for (let i = min(abs(exponent), STEP); i > 0; i--) power *= 10;
  return exponent < 0 ? value / power : value * power;
}
