//! Modules at reserved positions (Gim et al., "Prompt Cache", arXiv 2311.04934).

use std::error::Error;
use symphony::kv::Save;
use symphony::{model, Errno, Input, KvFile};

pub struct Schema {
    name: String,
    modules: Vec<Module>,
    /// Where the next module's positions begin.
    end: u32,
    /// Tokens of modules that were computed since the last question.
    computed: u64,
}

/// Tokens and the position of each.
#[derive(Default)]
pub struct Placed {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
}

struct Module {
    name: String,
    /// Its text, without the parameters.
    fixed: Placed,
    parameters: Vec<Parameter>,
    /// Held from its first use on.
    file: Option<KvFile>,
}

/// Positions that a prompt's own words take.
struct Parameter {
    name: String,
    start: u32,
    room: usize,
}

impl Schema {
    pub fn new(name: &str) -> Schema {
        Schema { name: name.into(), modules: Vec::new(), end: 0, computed: 0 }
    }

    /// A module behind the others. `{name:8}` in its text is a parameter with room for 8 tokens.
    pub fn add(&mut self, name: &str, text: &str) -> Result<(), Box<dyn Error>> {
        let mut module = Module {
            name: name.into(),
            fixed: Placed::default(),
            parameters: Vec::new(),
            file: None,
        };
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let (slot, after) = behind.split_once('}').ok_or("a { without its }")?;
            let (name, room) = slot.split_once(':').ok_or("a parameter is {name:tokens}")?;
            let room = room.parse().map_err(|_| "a parameter's room is a number of tokens")?;
            self.place(&mut module.fixed, before)?;
            module.parameters.push(Parameter { name: name.into(), start: self.end, room });
            self.end += room as u32;
            rest = after;
        }
        self.place(&mut module.fixed, rest)?;
        self.modules.push(module);
        Ok(())
    }

    fn place(&mut self, fixed: &mut Placed, text: &str) -> symphony::Result<()> {
        fixed.extend(model::tokenize(text)?, self.end);
        self.end += model::tokenize(text)?.len() as u32;
        Ok(())
    }

    /// The first position behind all modules.
    pub fn end(&self) -> u32 {
        self.end
    }

    /// How many tokens of modules were computed since the last time.
    pub fn take_computed(&mut self) -> u64 {
        std::mem::take(&mut self.computed)
    }

    /// Puts modules into a file, in this order. What remains to be computed are the parameters.
    pub async fn assemble(
        &mut self,
        kv: &KvFile,
        wanted: &[&str],
        given: &Input,
    ) -> Result<Placed, Box<dyn Error>> {
        let mut rest = Placed::default();
        for name in wanted {
            let number = self.modules.iter().position(|module| module.name == *name);
            let number = number.ok_or_else(|| format!("there is no module {}", name))?;
            self.load(number).await?;
            let module = &self.modules[number];
            if let Some(file) = &module.file {
                kv.append(file, 0..module.fixed.tokens.len() as u32)?;
            }
            for parameter in &module.parameters {
                let tokens = model::tokenize(given.text_or(&parameter.name, "")?)?;
                if tokens.len() > parameter.room {
                    let (name, room) = (&parameter.name, parameter.room);
                    return Err(format!("{} has room for {} tokens", name, room).into());
                }
                rest.extend(tokens, parameter.start);
            }
        }
        Ok(rest)
    }

    /// Finds a module's file, among the tenant's, or computes and names it.
    async fn load(&mut self, number: usize) -> symphony::Result<()> {
        let path = self.path(number);
        let module = &mut self.modules[number];
        if module.file.is_some() || module.fixed.tokens.is_empty() {
            return Ok(());
        }
        module.file = Some(match KvFile::open(&path) {
            Err(error) if error.errno == Errno::ENOENT => {
                let file = KvFile::create()?;
                let Placed { tokens, positions } = &module.fixed;
                file.pred(tokens).positions(positions).prefill().await?;
                file.save(&path, Save::REPLACE)?; // another run may have been here meanwhile
                self.computed += tokens.len() as u64;
                file
            }
            found => found?,
        });
        Ok(())
    }

    /// A module's name among the tenant's files: another text, or another place, is another file.
    fn path(&self, number: usize) -> String {
        let Placed { tokens, positions } = &self.modules[number].fixed;
        let print = tokens.iter().chain(positions).fold(0xcbf2_9ce4_8422_2325u64, |print, n| {
            (print ^ u64::from(*n)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{}/{}-{:016x}", self.name, self.modules[number].name, print)
    }

    /// Takes the names away.
    pub fn forget(&self) -> symphony::Result<()> {
        for number in (0..self.modules.len()).filter(|n| self.modules[*n].file.is_some()) {
            match KvFile::remove(&self.path(number)) {
                Err(error) if error.errno != Errno::ENOENT => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Placed {
    pub fn extend(&mut self, tokens: Vec<u32>, start: u32) {
        self.positions.extend(start..start + tokens.len() as u32);
        self.tokens.extend(tokens);
    }
}
