//! A form: the program writes what is printed on it, the model what comes into the gaps, and each gap has
//! a regular expression that its text matches.

use std::error::Error;
use symphony::json::{list, quote};
use symphony::{model, process, Constraint, Input, KvFile, Sampling, Value};

#[symphony::main]
async fn run(input: Input) -> Result<(), Box<dyn Error>> {
    let form = input.get("form").and_then(Value::as_array).ok_or("the input needs a form")?;
    let sampling = input.sampling("max_tokens", 64)?;
    let mut paper =
        Paper { kv: KvFile::create()?, ahead: model::tokenize("\n")?, text: String::new() };
    let mut gaps = Vec::new();
    for part in form {
        match part {
            Value::Str(text) => paper.print(text)?,
            gap => {
                let pattern = gap.get("match").and_then(Value::as_str);
                let pattern = pattern.ok_or("a part of a form is a text, or has a match")?;
                gaps.push(paper.fill(pattern, &sampling).await?);
            }
        }
    }
    let gaps = list(gaps.iter().map(|gap| quote(gap)));
    process::send(format!("{{\"text\": {}, \"gaps\": {}}}", quote(&paper.text), gaps))?;
    Ok(())
}

/// The form so far: what is in the file, what is not yet, and all of it as text.
struct Paper {
    kv: KvFile,
    ahead: Vec<u32>,
    text: String,
}

impl Paper {
    fn print(&mut self, text: &str) -> symphony::Result<()> {
        self.ahead.extend(model::tokenize(text)?);
        self.text.push_str(text);
        Ok(())
    }

    /// Lets the model fill a gap. Each has a constraint of its own: its text begins where it is used first.
    async fn fill(&mut self, pattern: &str, sampling: &Sampling) -> Result<String, Box<dyn Error>> {
        let constraint = Constraint::regex(pattern)?;
        let chosen = self.kv.stream(&self.ahead, &sampling.clone().constraint(&constraint));
        let mut tokens: Vec<u32> = chosen.rest().await?.iter().map(|choice| choice.token).collect();
        // The last one is not in the file. It ends the text, unless that was cut off.
        let last = tokens.pop().ok_or("there is no room in the context")?;
        if !model::info()?.eos.contains(&last) {
            return Err(format!("the tokens are too few for {}", pattern).into());
        }
        let text = String::from_utf8(model::detokenize(&tokens)?)?;
        self.text.push_str(&text);
        // An empty gap appended nothing but what stood before it.
        self.ahead.clear();
        Ok(text)
    }
}
