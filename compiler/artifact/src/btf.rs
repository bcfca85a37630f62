//! `.BTF`: the types that describe maps and functions, and the strings that line information names.
//!
//! Loaders derive a map from the type of a variable: a structure whose members are pointers to arrays, where the length
//! of an array is the number that is meant (`int (*max_entries)[1024]`). Data sections are one array of bytes. Each
//! program has a `FUNC`, because the kernel accepts line information only for functions that have one.

pub(super) mod lines;

use std::collections::BTreeMap;

use super::bytes::Sink;

/// The magic number of both sections, version 1, no flags.
const MAGIC: u16 = 0xeb9f;
const VERSION: u16 = 1;

/// Kinds of type.
#[derive(Clone, Copy)]
enum TypeKind {
    Int = 1,
    Ptr = 2,
    Array = 3,
    Struct = 4,
    Fwd = 7,
    Func = 12,
    FuncProto = 13,
    Var = 14,
    Datasec = 15,
}

/// The linkage of variables and functions that other files may use.
const GLOBAL: u32 = 1;
/// The type `void`.
const VOID: u32 = 0;

/// The number of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TypeId(pub(super) u32);

/// A variable in a section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    pub(super) id: TypeId,
    pub(super) offset: u32,
    pub(super) size: u32,
}

/// The section under construction.
#[derive(Clone, Debug)]
pub(super) struct Btf {
    types: Sink,
    count: u32,
    strings: Vec<u8>,
    offsets: BTreeMap<String, u32>,
    /// For each number, the type "pointer to an array of that many `int`".
    numbers: BTreeMap<u32, TypeId>,
    int: TypeId,
    byte: TypeId,
}

impl Btf {
    pub(super) fn new() -> Self {
        let mut btf = Self {
            types: Sink::default(),
            count: 0,
            strings: vec![0],
            offsets: BTreeMap::from([(String::new(), 0)]),
            numbers: BTreeMap::new(),
            int: TypeId(VOID),
            byte: TypeId(VOID),
        };
        btf.int = btf.integer("int", 4, 1);
        btf.byte = btf.integer("unsigned char", 1, 0);
        btf
    }

    /// The offset of a string; each string is stored once.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        if let Some(offset) = self.offsets.get(text) {
            return *offset;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        self.offsets.insert(text.to_owned(), offset);
        offset
    }

    /// `struct btf_type`: name, kind with the number of members (or a flag), size or type.
    fn head(&mut self, name: &str, kind: TypeKind, members: u32, size_or_type: u32) -> TypeId {
        let name = self.string(name);
        self.types.u32(name);
        self.types.u32((kind as u32) << 24 | members);
        self.types.u32(size_or_type);
        self.count += 1;
        TypeId(self.count)
    }

    fn integer(&mut self, name: &str, bytes: u32, signed: u32) -> TypeId {
        let id = self.head(name, TypeKind::Int, 0, bytes);
        self.types.u32((signed << 24) | (bytes * 8));
        id
    }

    fn array(&mut self, of: TypeId, length: u32) -> TypeId {
        let id = self.head("", TypeKind::Array, 0, 0);
        self.types.u32(of.0);
        self.types.u32(self.int.0);
        self.types.u32(length);
        id
    }

    /// `int (*)[number]`
    fn number(&mut self, number: u32) -> TypeId {
        if let Some(id) = self.numbers.get(&number) {
            return *id;
        }
        let array = self.array(self.int, number);
        let id = self.head("", TypeKind::Ptr, 0, array.0);
        self.numbers.insert(number, id);
        id
    }

    fn variable(&mut self, name: &str, of: TypeId) -> TypeId {
        let id = self.head(name, TypeKind::Var, 0, of.0);
        self.types.u32(GLOBAL);
        id
    }

    /// A map, by its members; the variable's size is one pointer for each member.
    pub(super) fn map(&mut self, name: &str, members: &[(&str, u32)], offset: u32) -> Variable {
        let types: Vec<TypeId> = members.iter().map(|(_, number)| self.number(*number)).collect();
        let names: Vec<u32> = members.iter().map(|(name, _)| self.string(name)).collect();
        let size = 8 * members.len() as u32;
        let structure = self.head("", TypeKind::Struct, members.len() as u32, size);
        for (index, (name, id)) in names.iter().zip(types).enumerate() {
            self.types.u32(*name);
            self.types.u32(id.0);
            self.types.u32(64 * index as u32);
        }
        Variable { id: self.variable(name, structure), offset, size }
    }

    /// A variable of `size` bytes.
    pub(super) fn bytes(&mut self, name: &str, size: u32) -> Variable {
        let array = self.array(self.byte, size);
        Variable { id: self.variable(name, array), offset: 0, size }
    }

    /// A section and its variables.
    pub(super) fn data_section(&mut self, name: &str, variables: &[Variable]) {
        let size = variables.iter().map(|variable| variable.offset + variable.size).max().unwrap_or(0);
        self.head(name, TypeKind::Datasec, variables.len() as u32, size);
        for variable in variables {
            self.types.u32(variable.id.0);
            self.types.u32(variable.offset);
            self.types.u32(variable.size);
        }
    }

    /// `int NAME(struct __sk_buff *skb)`, for every name.
    pub(super) fn functions(&mut self, names: &[&str]) -> Vec<TypeId> {
        let context = self.head("__sk_buff", TypeKind::Fwd, 0, 0);
        let pointer = self.head("", TypeKind::Ptr, 0, context.0);
        let prototype = self.head("", TypeKind::FuncProto, 1, self.int.0);
        let parameter = self.string("skb");
        self.types.u32(parameter);
        self.types.u32(pointer.0);
        names.iter().map(|name| self.head(name, TypeKind::Func, GLOBAL, prototype.0)).collect()
    }

    /// The section's bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        const HEADER: u32 = 24;
        let types = self.types.0.len() as u32;
        let mut out = Sink::default();
        out.u16(MAGIC);
        out.u16(VERSION);
        for number in [HEADER, 0, types, types, self.strings.len() as u32] {
            out.u32(number);
        }
        out.0.append(&mut self.types.0);
        out.0.append(&mut self.strings);
        out.0
    }
}
