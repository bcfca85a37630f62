//! Enforcement with real packets, in network namespaces.

mod attach;
mod audit;
mod contents;
mod edge;
mod ended;
mod extended;
mod faults;
mod flows;
mod keeps;
mod kept_lists;
mod leftovers;
mod limits;
mod names;
mod neighbours;
mod net;
mod new_endpoints;
mod pods;
mod policy;
mod prepared;
mod probe;
mod retired;
mod seam;
mod single;
mod spare;
mod switch;
