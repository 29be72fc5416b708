use super::*;
use symphony::json;
use symphony::testing::{Host, Seen};

const MODULES: &str =
    r#""modules": {"rules": "Be brief. ", "role": "You are {who:8}. ", "end": "Go!"}"#;

fn play(input: &str, questions: &[&str]) -> (Result<(), String>, Seen) {
    let host = questions.iter().fold(Host::new().input(input), |host, q| host.message(*q));
    let (outcome, seen) = host.observe(|| symphony::block_on(run(Input::read().unwrap())));
    assert_eq!((seen.files_left, seen.tickets_left), (0, 0));
    (outcome.unwrap().map_err(|error| error.to_string()), seen)
}

fn numbers(seen: &Seen) -> Vec<(u32, u32)> {
    let number = |message: &Value, key| message.get(key).and_then(Value::as_u32).unwrap();
    let messages = seen.sent.iter().map(|message| json::decode(message).unwrap());
    messages.map(|m| (number(&m, "reused"), number(&m, "computed"))).collect()
}

#[test]
fn a_module_is_computed_once_in_whatever_order_it_is_used() {
    let (outcome, seen) = play(
        &format!(r#"{{{}, "max_tokens": 3}}"#, MODULES),
        &[
            r#"{"modules": ["rules", "role"], "who": "a cook", "text": "Hi"}"#,
            r#"{"modules": ["end", "role", "rules"], "who": "a smith", "text": "Hello"}"#,
            r#"{"modules": [], "text": "Hi"}"#,
        ],
    );
    outcome.unwrap();
    // "You are . " are ten tokens, "Be brief. " too, "Go!" three.
    assert_eq!(numbers(&seen), [(20, 20 + 6 + 2), (23, 3 + 7 + 5), (0, 2)]);
    assert_eq!(seen.names.len(), 0);
}

#[test]
fn modules_stay_for_the_next_run_where_it_is_asked_for() {
    let input = format!(r#"{{{}, "max_tokens": 1, "keep": true, "schema": "mine"}}"#, MODULES);
    let (outcome, seen) = play(&input, &[r#"{"modules": ["end"], "text": "Hi"}"#]);
    outcome.unwrap();
    assert_eq!(seen.names.len(), 1);
    assert!(seen.names[0].starts_with("mine/end-"));

    let host = Host::new().input(input);
    let again = host.run(|| {
        symphony::block_on(async {
            let ask = Input::parse(br#"{"modules": ["end"], "text": "Hi"}"#)?;
            let mut told = Vec::new();
            for _ in 0..2 {
                let mut schema = Schema::new("mine");
                schema.add("end", "Go!")?;
                told.push(answer(&mut schema, &ask, 1).await?);
            }
            Ok::<_, Box<dyn Error>>(told)
        })
    });
    let again = again.unwrap();
    assert!(again[0].contains(r#""computed":5"#) && again[1].contains(r#""computed":2"#));
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let whole = format!("{{{}}}", MODULES);
    for (input, question, words) in [
        ("{}", "{}", "needs modules"),
        (r#"{"modules": {"a": "{b"}}"#, "{}", "a { without its }"),
        (r#"{"modules": {"a": "{b}"}}"#, "{}", "{name:tokens}"),
        (&*whole, r#"{"modules": ["none"], "text": "a"}"#, "no module none"),
        (&*whole, r#"{"modules": ["role"], "who": "a long story"}"#, "room for 8 tokens"),
        (&*whole, r#"{"modules": ["rules"]}"#, "needs a text or parameters"),
    ] {
        let error = play(input, &[question]).0.unwrap_err();
        assert!(error.contains(words), "{}", error);
    }
}
