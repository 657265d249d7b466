//! The running kernel's description of its own types (BTF): offsets of structure members, and arguments of tracepoints.
//!
//! Only requested types are decoded: the kernel has a hundred thousand types, and none of them is stored. The format is
//! in the kernel's Documentation/bpf/btf.rst.

use std::fs;
use std::io;
use std::path::Path;
use thiserror::Error;

/// The file of the running kernel.
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// Limit of the nesting of structures without a name.
const DEPTH_MAX: usize = 8;

const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNCTION_PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;
const KIND_MAX: u32 = ENUM64;

/// A description that cannot be used.
#[derive(Debug, Error)]
pub enum BtfError {
    #[error("{VMLINUX} cannot be read: the kernel needs CONFIG_DEBUG_INFO_BTF")]
    Read(#[source] io::Error),
    #[error("{VMLINUX} has an unknown format: {0}")]
    Malformed(&'static str),
}

/// All types, with the position at which each begins.
pub struct Btf {
    types: Vec<u8>,
    names: Vec<u8>,
    /// Indexed by the type's number minus one: number 0 is `void`.
    begins: Vec<u32>,
}

/// An argument of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A pointer to a structure of this name.
    Pointer(String),
    Other,
}

struct Type {
    name: u32,
    kind: u32,
    /// How many members or parameters.
    count: usize,
    /// Whether the members' offsets contain their number of bits.
    has_bits: bool,
    /// Its size, or the type that it refers to.
    size_or_type: u32,
    /// Position of the data after its first 12 bytes.
    at: usize,
}

impl Btf {
    /// The description of the running kernel.
    pub fn of_kernel() -> Result<Self, BtfError> {
        Self::parse(&fs::read(Path::new(VMLINUX)).map_err(BtfError::Read)?)
    }

    fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let header = bytes.get(..HEADER_BYTES).ok_or(BtfError::Malformed("it has no header"))?;
        if u16::from_ne_bytes([header[0], header[1]]) != MAGIC {
            return Err(BtfError::Malformed("its magic number is wrong"));
        }
        let word = |at| word_at(bytes, at).map(|word| word as usize).unwrap_or_default();
        let section = |offset: usize, length: usize| {
            let begins = word(4).checked_add(offset)?;
            bytes.get(begins..begins.checked_add(length)?)
        };
        let types = section(word(8), word(12)).ok_or(BtfError::Malformed("its types are truncated"))?.to_vec();
        let names = section(word(16), word(20)).ok_or(BtfError::Malformed("its names are truncated"))?.to_vec();
        let mut btf = Self { types, names, begins: Vec::new() };
        let mut at = 0;
        while at < btf.types.len() {
            let begins = u32::try_from(at).map_err(|_| BtfError::Malformed("it is too long"))?;
            let of = btf.read(at).ok_or(BtfError::Malformed("a type is truncated"))?;
            let behind = match of.kind {
                INT | VARIABLE | DECLARATION_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | SECTION | ENUM64 => of.count * 12,
                ENUM | FUNCTION_PROTOTYPE => of.count * 8,
                kind if kind <= KIND_MAX => 0,
                _ => return Err(BtfError::Malformed("it has an unknown kind of type")),
            };
            btf.begins.push(begins);
            at = of.at + behind;
        }
        Ok(btf)
    }

    fn read(&self, at: usize) -> Option<Type> {
        let (name, info, size_or_type) = (word_at(&self.types, at)?, word_at(&self.types, at + 4)?, word_at(&self.types, at + 8)?);
        let (kind, count, has_bits) = (info >> 24 & 0x1f, (info & 0xffff) as usize, info >> 31 == 1);
        Some(Type { name, kind, count, has_bits, size_or_type, at: at + 12 })
    }

    fn of(&self, number: u32) -> Option<Type> {
        self.read(*self.begins.get(usize::try_from(number.checked_sub(1)?).ok()?)? as usize)
    }

    fn name(&self, at: u32) -> &[u8] {
        let from = self.names.get(at as usize..).unwrap_or_default();
        &from[..from.iter().position(|byte| *byte == 0).unwrap_or(0)]
    }

    fn find(&self, kind: u32, name: &str) -> Option<Type> {
        let all = self.begins.iter().filter_map(|at| self.read(*at as usize));
        all.into_iter().find(|of| of.kind == kind && self.name(of.name) == name.as_bytes())
    }

    /// The type behind typedefs and qualifiers.
    fn plain(&self, mut number: u32) -> Option<Type> {
        // A kernel's description has no cycles; this bounds any other input.
        for _ in 0..32 {
            let of = self.of(number)?;
            match of.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => number = of.size_or_type,
                _ => return Some(of),
            }
        }
        None
    }

    /// The offset of a member in a structure, in bytes. `path`: the structure's name, then the members' names, each
    /// inside the one before.
    pub fn offset(&self, path: &[&str]) -> Option<u32> {
        let (structure, members) = path.split_first()?;
        let mut of = self.find(STRUCT, structure)?;
        let mut bits: u32 = 0;
        for member in members {
            let (at, number) = self.member(&of, member, DEPTH_MAX)?;
            bits = bits.checked_add(at)?;
            of = self.plain(number).unwrap_or(Type { name: 0, kind: 0, count: 0, has_bits: false, size_or_type: 0, at: 0 });
        }
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// The offset in bits and the type, also of members inside unnamed structures.
    fn member(&self, of: &Type, name: &str, depth: usize) -> Option<(u32, u32)> {
        if !matches!(of.kind, STRUCT | UNION) {
            return None;
        }
        for n in 0..of.count {
            let at = of.at + n * 12;
            let (its_name, number, offset) = (word_at(&self.types, at)?, word_at(&self.types, at + 4)?, word_at(&self.types, at + 8)?);
            let bits = if of.has_bits { offset & 0x00ff_ffff } else { offset };
            let its_name = self.name(its_name);
            if its_name == name.as_bytes() {
                // A bit field cannot be read as a number of its own.
                let is_part = of.has_bits && offset >> 24 != 0;
                return (!is_part).then_some((bits, number));
            }
            if its_name.is_empty()
                && depth > 0
                && let Some(inner) = self.plain(number)
                && let Some((more, number)) = self.member(&inner, name, depth - 1)
            {
                return Some((bits.checked_add(more)?, number));
            }
        }
        None
    }

    /// The arguments of this tracepoint, as programs see them.
    pub fn arguments(&self, tracepoint: &str) -> Option<Vec<Argument>> {
        let pointer = self.plain(self.find(TYPEDEF, &format!("btf_trace_{tracepoint}"))?.size_or_type)?;
        let prototype = self.plain(pointer.size_or_type)?;
        if pointer.kind != POINTER || prototype.kind != FUNCTION_PROTOTYPE {
            return None;
        }
        // The first argument is the tracepoint's own.
        (1..prototype.count).map(|n| self.argument(word_at(&self.types, prototype.at + n * 8 + 4)?)).collect()
    }

    fn argument(&self, number: u32) -> Option<Argument> {
        let of = self.plain(number)?;
        if of.kind != POINTER {
            return Some(Argument::Other);
        }
        let name =
            self.plain(of.size_or_type).filter(|to| to.kind == STRUCT).map(|to| String::from_utf8_lossy(self.name(to.name)).into_owned());
        Some(name.map_or(Argument::Other, Argument::Pointer))
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a description by hand.
    #[derive(Default)]
    struct Made {
        types: Vec<u8>,
        names: Vec<u8>,
    }

    impl Made {
        fn name(&mut self, name: &str) -> u32 {
            if self.names.is_empty() {
                self.names.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let at = self.names.len();
            self.names.extend([name.as_bytes(), &[0]].concat());
            u32::try_from(at).unwrap()
        }

        fn put(&mut self, name: &str, kind: u32, count: u32, size_or_type: u32, behind: &[u32]) {
            let name = self.name(name);
            for word in [name, kind << 24 | count, size_or_type].iter().chain(behind) {
                self.types.extend(word.to_ne_bytes());
            }
        }

        fn bytes(&self) -> Vec<u8> {
            let (types, names) = (u32::try_from(self.types.len()).unwrap(), u32::try_from(self.names.len()).unwrap());
            let mut bytes = Vec::new();
            bytes.extend(MAGIC.to_ne_bytes());
            bytes.extend([1, 0]);
            for word in [24, 0, types, types, names] {
                bytes.extend(u32::to_ne_bytes(word));
            }
            [bytes, self.types.clone(), self.names.clone()].concat()
        }
    }

    /// Flag in a structure's kind: its members have numbers of bits.
    const HAS_BITS: u32 = 1 << 7;

    fn made() -> Vec<u8> {
        let mut made = Made::default();
        let [min, inner, sched] = ["min_flt", "run_delay", "sched_info"].map(|name| made.name(name));
        made.put("int", INT, 0, 4, &[32]); // 1
        made.put("sched_info", STRUCT, 1, 16, &[inner, 1, 64]); // 2
        made.put("", UNION, 1, 8, &[min, 1, 32]); // 3, without a name
        made.put("task_struct", STRUCT, 2, 64, &[sched, 2, 128, 0, 3, 256]); // 4
        made.put("", POINTER, 0, 4, &[]); // 5
        made.put("", FUNCTION_PROTOTYPE, 3, 0, &[0, 5, 0, 5, 0, 1]); // 6
        made.put("", POINTER, 0, 6, &[]); // 7
        made.put("btf_trace_a", TYPEDEF, 0, 7, &[]); // 8
        let [whole, part] = ["sk_type", "sk_protocol"].map(|name| made.name(name));
        made.put("sock", HAS_BITS | STRUCT, 2, 8, &[whole, 1, 32, part, 1, 8 << 24 | 8]); // 9
        made.bytes()
    }

    #[test]
    fn members_are_found_within_others_and_arguments_have_their_types() {
        let btf = Btf::parse(&made()).unwrap();
        assert_eq!(btf.offset(&["task_struct", "sched_info", "run_delay"]), Some(16 + 8));
        assert_eq!(btf.offset(&["task_struct", "min_flt"]), Some(32 + 4));
        assert_eq!(btf.offset(&["sock", "sk_type"]), Some(4));
        assert_eq!(btf.offset(&["sock", "sk_protocol"]), None, "a bit field is not read");
        for none in [&["task_struct", "other"][..], &["other", "min_flt"], &["task_struct", "min_flt", "more"], &[]] {
            assert_eq!(btf.offset(none), None, "{none:?}");
        }
        let pointer = Argument::Pointer("task_struct".to_owned());
        assert_eq!(btf.arguments("a"), Some(vec![pointer, Argument::Other]));
        assert_eq!(btf.arguments("b"), None);
    }

    #[test]
    fn damaged_input_is_refused_without_a_panic() {
        let whole = made();
        assert!(Btf::parse(b"").is_err() && Btf::parse(&[0; 100]).is_err());
        for end in 0..whole.len() {
            let _ = Btf::parse(&whole[..end]);
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                if let Ok(btf) = Btf::parse(&damaged) {
                    let _ = (btf.offset(&["task_struct", "sched_info", "run_delay"]), btf.arguments("a"));
                }
            }
        }
    }
}
