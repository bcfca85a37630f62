//! The parts of `union bpf_attr` that our commands read and write, field for field as in `linux/bpf.h`.

pub(super) const MAP_CREATE: i32 = 0;
pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
pub(super) const MAP_UPDATE_ELEM: i32 = 2;
pub(super) const MAP_DELETE_ELEM: i32 = 3;
pub(super) const MAP_GET_NEXT_KEY: i32 = 4;
pub(super) const PROG_LOAD: i32 = 5;
pub(super) const OBJ_PIN: i32 = 6;
pub(super) const OBJ_GET: i32 = 7;
pub(super) const PROG_TEST_RUN: i32 = 10;
pub(super) const PROG_GET_FD_BY_ID: i32 = 13;
pub(super) const MAP_GET_FD_BY_ID: i32 = 14;
pub(super) const OBJ_GET_INFO_BY_FD: i32 = 15;
pub(super) const PROG_QUERY: i32 = 16;
pub(super) const BTF_LOAD: i32 = 18;
pub(super) const MAP_FREEZE: i32 = 22;
pub(super) const MAP_LOOKUP_BATCH: i32 = 24;
pub(super) const MAP_UPDATE_BATCH: i32 = 26;
pub(super) const MAP_DELETE_BATCH: i32 = 27;
pub(super) const LINK_CREATE: i32 = 28;
pub(super) const LINK_UPDATE: i32 = 29;
pub(super) const LINK_DETACH: i32 = 34;

/// Structures that are parts of `union bpf_attr`.
pub(super) trait Attr {}

#[derive(Default)]
#[repr(C)]
pub(super) struct MapCreate {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) map_flags: u32,
    pub(super) inner_map_fd: u32,
    pub(super) numa_node: u32,
    pub(super) map_name: [u8; 16],
}

/// `value` is `next_key` for one command; the freeze command reads only the descriptor.
#[derive(Default)]
#[repr(C)]
pub(super) struct MapElem {
    pub(super) map_fd: u32,
    pub(super) pad: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct MapBatch {
    pub(super) in_batch: u64,
    pub(super) out_batch: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) count: u32,
    pub(super) map_fd: u32,
    pub(super) elem_flags: u64,
    pub(super) flags: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ProgLoad {
    pub(super) prog_type: u32,
    pub(super) insn_cnt: u32,
    pub(super) insns: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log_buf: u64,
    pub(super) kern_version: u32,
    pub(super) prog_flags: u32,
    pub(super) prog_name: [u8; 16],
    pub(super) prog_ifindex: u32,
    pub(super) expected_attach_type: u32,
    pub(super) prog_btf_fd: u32,
    pub(super) func_info_rec_size: u32,
    pub(super) func_info: u64,
    pub(super) func_info_cnt: u32,
    pub(super) line_info_rec_size: u32,
    pub(super) line_info: u64,
    pub(super) line_info_cnt: u32,
    pub(super) attach_btf_id: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct BtfLoad {
    pub(super) btf: u64,
    pub(super) btf_log_buf: u64,
    pub(super) btf_size: u32,
    pub(super) btf_log_size: u32,
    pub(super) btf_log_level: u32,
    pub(super) pad: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct TestRunAttr {
    pub(super) prog_fd: u32,
    pub(super) retval: u32,
    pub(super) data_size_in: u32,
    pub(super) data_size_out: u32,
    pub(super) data_in: u64,
    pub(super) data_out: u64,
    pub(super) repeat: u32,
    pub(super) duration: u32,
    pub(super) ctx_size_in: u32,
    pub(super) ctx_size_out: u32,
    pub(super) ctx_in: u64,
    pub(super) ctx_out: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ObjectAttr {
    pub(super) pathname: u64,
    pub(super) bpf_fd: u32,
    pub(super) file_flags: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct Info {
    pub(super) bpf_fd: u32,
    pub(super) info_len: u32,
    pub(super) info: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ProgQuery {
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) query_flags: u32,
    pub(super) attach_flags: u32,
    pub(super) prog_ids: u64,
    pub(super) count: u32,
    pub(super) pad: u32,
    pub(super) prog_attach_flags: u64,
    pub(super) link_ids: u64,
    pub(super) link_attach_flags: u64,
    pub(super) revision: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct LinkCreate {
    pub(super) prog_fd: u32,
    pub(super) target_ifindex: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) relative_fd: u32,
    pub(super) pad: u32,
    pub(super) expected_revision: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ById {
    pub(super) id: u32,
    pub(super) next_id: u32,
    pub(super) open_flags: u32,
}

/// The detach command reads only the first field.
#[derive(Default)]
#[repr(C)]
pub(super) struct LinkUpdate {
    pub(super) link_fd: u32,
    pub(super) new_prog_fd: u32,
    pub(super) flags: u32,
    pub(super) old_prog_fd: u32,
}

impl Attr for BtfLoad {}
impl Attr for ById {}
impl Attr for ObjectAttr {}
impl Attr for Info {}
impl Attr for ProgQuery {}
impl Attr for LinkCreate {}
impl Attr for LinkUpdate {}
impl Attr for MapCreate {}
impl Attr for MapElem {}
impl Attr for MapBatch {}
impl Attr for ProgLoad {}
impl Attr for TestRunAttr {}
