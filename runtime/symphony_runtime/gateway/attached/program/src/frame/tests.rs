use super::*;
use symphony::{msgpack, Value};

fn frame(calls: Vec<(u64, &str, Vec<(&str, Value)>)>) -> Vec<u8> {
    let calls = calls.into_iter().map(|(number, name, keys)| {
        let arguments = Value::object(keys);
        Value::Array(vec![Value::Int(number as i64), name.into(), arguments])
    });
    msgpack::encode(&Value::Array(calls.collect()))
}

#[test]
fn calls_are_read_in_order_with_their_arguments() {
    let bytes = frame(vec![
        (1, "tokenize", vec![("text", "caf\u{e9}".into())]),
        (2, "pred", vec![("kv", Value::Int(70_000)), ("tokens", Value::Bin(vec![7, 1, 0, 0]))]),
    ]);
    let mut frame = Frame::new(&bytes).unwrap();
    let mut first = frame.next().unwrap().unwrap();
    assert_eq!((first.number, first.name), (1, "tokenize"));
    assert_eq!(first.text("text").unwrap(), "caf\u{e9}");
    first.end().unwrap();
    let mut second = frame.next().unwrap().unwrap();
    assert_eq!(second.words("tokens").unwrap(), [263]);
    assert_eq!(second.u32("kv").unwrap(), 70_000);
    assert!(frame.next().unwrap().is_none());
}

#[test]
fn keys_are_refused_by_name() {
    let bytes = frame(vec![(1, "pred", vec![("kv", "x".into()), ("kw", Value::Nil)])]);
    let mut call = Frame::new(&bytes).unwrap().next().unwrap().unwrap();
    let wrong = call.u32("kv").unwrap_err().0;
    assert_eq!(wrong, "pred: `kv` must be a whole number from 0 to 4294967295");
    assert_eq!(call.end().unwrap_err().0, "pred has no key `kw`");
    assert_eq!(call.u32("at").unwrap_err().0, "pred needs the key `at`");
}

#[test]
fn nested_values_are_kept_as_they_came() {
    let grants = Value::Array(vec![Value::object([("kv", Value::Float(1.5))]), Value::Nil]);
    let bytes = frame(vec![(1, "spawn", vec![("grants", grants.clone())])]);
    let mut call = Frame::new(&bytes).unwrap().next().unwrap().unwrap();
    assert_eq!(msgpack::decode(call.nested("grants").unwrap()).unwrap(), grants);
}

fn wrong(bytes: &[u8]) -> &'static str {
    let read = |bytes| -> Result<(), Malformed> {
        let mut frame = Frame::new(bytes)?;
        while frame.next()?.is_some() {}
        Ok(())
    };
    read(bytes).unwrap_err().0
}

#[test]
fn what_is_no_frame_is_refused() {
    assert_eq!(wrong(b""), "it is cut short");
    assert_eq!(wrong(b"\x80"), "it is no list of calls");
    assert_eq!(wrong(b"\x90\x00"), "bytes follow the last call");
    assert_eq!(wrong(b"\x91\x93\x01\xa1a"), "it is cut short");
    assert_eq!(wrong(b"\x91\x92\x01\xa1a"), "a call is [number, name, arguments]");
    assert_eq!(wrong(b"\x91\x93\xff\xa1a\x80"), "a call's number is a whole number from 0 to 2^63 - 1");
    assert_eq!(wrong(b"\x91\x93\x01\xa1\xff\x80"), "text that is no UTF-8");
    assert_eq!(wrong(b"\x91\x93\x01\xa1a\xdf\xff\xff\xff\xff"), "a call has at most 8 keys");
    assert_eq!(wrong(b"\x91\x93\x01\xa1a\x82\xa1k\x00\xa1k\x00"), "a call has a key twice");
    assert_eq!(wrong(b"\x91\x93\x01\xa1a\x81\xa1k\xdd\xff\xff\xff\xff"), "it is cut short");
    assert_eq!(wrong(b"\xdd\xff\xff\xff\xff"), "it is cut short");
    assert_eq!(wrong(b"\x91\x93\x01\xa1a\x81\xa1k\xc7\x00\x00"), "an extension type");
    // Ten thousand lists in one another take no stack.
    let deep = [&b"\x91\x93\x01\xa1a\x81\xa1k"[..], &[0x91; 10_000]].concat();
    assert_eq!(wrong(&deep), "it is cut short");
}
