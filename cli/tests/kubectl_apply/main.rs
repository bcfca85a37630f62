//! What `kubectl apply` makes of a file and the object in the cluster: a table of cases in
//! `compiler/corpus/kubectl-apply`.
//!
//! Each case says how the live object came to be (`command` creates `before`, and `edit` is a merge patch of another
//! user), and which `file` is applied. `live` and `applied` are recorded from kubectl and kube-apiserver 1.35, not
//! written by hand; `applied` is null if the server refuses the result. [`recorded`] compares Weir's merge with them, so
//! it runs everywhere. [`server`] compares the record with a real server, and with `WEIR_RECORD=1` writes it.

mod cases;
mod recorded;
mod server;
