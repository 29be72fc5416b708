//! A run's input: JSON with texts, numbers and token ids.

use std::error::Error;
use symphony::{process, Value};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub struct Given(Value);

impl Given {
    pub fn read() -> Result<Given> {
        Ok(Given(process::input_json()?))
    }

    fn field(&self, name: &str) -> Result<&Value> {
        Ok(self.0.get(name).ok_or_else(|| format!("the input has no {:?}", name))?)
    }

    pub fn text(&self, name: &str) -> Result<String> {
        Ok(self.field(name)?.as_str().ok_or_else(|| format!("{:?} is no text", name))?.into())
    }

    pub fn number(&self, name: &str) -> Result<u32> {
        Ok(self.field(name)?.as_u32().ok_or_else(|| format!("{:?} is no number", name))?)
    }

    pub fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        tokens(self.field(name)?).ok_or_else(|| format!("{:?} holds no tokens", name).into())
    }

    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        let texts = self.field(name)?.as_array().unwrap_or_default();
        let read: Option<Vec<String>> =
            texts.iter().map(|text| text.as_str().map(String::from)).collect();
        read.ok_or_else(|| format!("{:?} holds no texts", name).into())
    }

    pub fn lists(&self, name: &str) -> Result<Vec<Vec<u32>>> {
        let lists = self.field(name)?.as_array().unwrap_or_default();
        let read: Option<Vec<Vec<u32>>> = lists.iter().map(tokens).collect();
        read.ok_or_else(|| format!("{:?} holds no lists of tokens", name).into())
    }
}

fn tokens(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(Value::as_u32).collect()
}
