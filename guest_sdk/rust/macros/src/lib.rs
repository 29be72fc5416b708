//! The attribute `#[symphony::main]`; the crate `symphony` gives it to programs.

use proc_macro::{TokenStream, TokenTree};

/// Makes a function the program's entry; it may be `async`.
///
/// The function takes nothing or the run's input (`symphony::FromInput`), and returns what ends a run
/// (`symphony::Outcome`): nothing, an exit code, a value, which is the run's last message, or a
/// `Result` of these.
#[proc_macro_attribute]
pub fn main(attribute: TokenStream, function: TokenStream) -> TokenStream {
    let given = attribute.is_empty().then(|| entry(&function)).flatten();
    let entry = given.unwrap_or_else(|| {
        String::from("::core::compile_error!(\"#[symphony::main] belongs to a function, and takes nothing\");")
    });
    let entry: TokenStream = entry.parse().expect("the text above is Rust");
    function.into_iter().chain(entry).collect()
}

/// The call that exports the function: its name follows `fn`, and `async` is before.
fn entry(function: &TokenStream) -> Option<String> {
    let words = function.clone().into_iter().map(|token| match token {
        TokenTree::Ident(word) => word.to_string(),
        _ => String::new(),
    });
    let words: Vec<String> = words.collect();
    let place = words.iter().position(|word| word == "fn")?;
    let kind = if words[..place].iter().any(|word| word == "async") { "async " } else { "" };
    let name = words.get(place + 1).filter(|name| !name.is_empty())?;
    Some(format!("::symphony::entry!(\"lip_main\", {}{});", kind, name))
}
