//! Prompts from parts: a text with places to fill, and the turns of a conversation.

use crate::error::Result;
use crate::model::{self, Message};
use alloc::string::String;
use alloc::vec::Vec;

/// The template with each `{name}` of these replaced by its text. Other braces stay, and what was
/// put in is not looked at again.
///
/// ```
/// use symphony::prompt::fill;
///
/// let text = fill("{who}: {what} {else}", &[("who", "Ada"), ("what", "see {who}")]);
/// assert_eq!(text, "Ada: see {who} {else}");
/// ```
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let (before, from) = rest.split_at(open);
        filled.push_str(before);
        let name = from.find('}').map(|close| &from[1..close]);
        match values.iter().find(|(key, _)| Some(*key) == name) {
            Some((key, value)) => {
                filled.push_str(value);
                rest = &from[key.len() + 2..];
            }
            None => {
                filled.push('{');
                rest = &from[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// The turns of a conversation, for the model's own chat template.
///
/// ```
/// # symphony::testing::Host::new().run(|| symphony::block_on(async {
/// use symphony::{prompt::Turns, Sampling, Session};
///
/// let mut turns = Turns::new().system("Be kind.").user("hi");
/// let mut session = Session::new("")?;
/// session.rewrite(&turns.tokens()?)?;
/// let answer = session.reply(&Sampling::new().max_tokens(8)).await?;
/// turns = turns.assistant(answer.text).user("and now?");
/// let known = session.rewrite(&turns.tokens()?)?; // only what is new will be computed
/// assert!(known >= "<system>Be kind.\n<user>hi\n<assistant>".len());
/// # symphony::Result::Ok(()) }).unwrap());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// What was said, oldest first.
    pub messages: Vec<Message>,
}

impl Turns {
    /// Nothing was said.
    pub fn new() -> Turns {
        Turns::default()
    }

    /// What the model is told about its part.
    pub fn system(self, text: impl Into<String>) -> Turns {
        self.turn("system", text)
    }

    /// What the user says.
    pub fn user(self, text: impl Into<String>) -> Turns {
        self.turn("user", text)
    }

    /// What the model has said.
    pub fn assistant(self, text: impl Into<String>) -> Turns {
        self.turn("assistant", text)
    }

    /// What anybody says.
    pub fn turn(mut self, role: impl Into<String>, text: impl Into<String>) -> Turns {
        self.say(role, text);
        self
    }

    /// Adds what anybody says.
    pub fn say(&mut self, role: impl Into<String>, text: impl Into<String>) {
        self.messages.push(Message::new(role, text));
    }

    /// The conversation's tokens, ready for the answer.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        model::chat(&self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_that_name_nothing_stay() {
        let values = [("a", "1"), ("", "none")];
        assert_eq!(fill("{a}{a}-{b}-{", &values), "11-{b}-{");
        assert_eq!(fill("{ {a} }}{{a}}", &values), "{ 1 }}{1}");
        assert_eq!(fill("{}\u{e9}{\u{e9}}", &values), "none\u{e9}{\u{e9}}");
    }
}
