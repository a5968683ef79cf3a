//! The random programs reach what they are meant to compare: a comparison that never meets a case shows nothing about it.

use smp_reference::program::{Op, Outcome, Program, Reference, Side};
use std::collections::BTreeMap;

#[test]
fn property_random_programs_reach_every_reason_status_and_figure() {
    let mut met: BTreeMap<String, u64> = BTreeMap::new();
    let mut calls = 0;
    for seed in 1..=2500 {
        let program = Program::random(seed, 200);
        let mut reference = Reference::new(program.options);
        for op in &program.ops {
            calls += 1;
            let name = format!("{op:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
            let outcome = reference.apply(op);
            reference.check();
            match &outcome {
                Outcome::Block { reason, entry, address, block_address, .. } => {
                    *met.entry(format!("reason {reason}")).or_default() += 1;
                    *met.entry(format!("entry {entry}")).or_default() += 1;
                    *met.entry("padding before the address".into()).or_default() += u64::from(address != block_address);
                    if let Op::Alloc { stream: None, .. } = op {
                        *met.entry(format!("host order, reason {reason}")).or_default() += 1;
                    }
                }
                Outcome::Failed(status) => *met.entry(format!("{name} {status}")).or_default() += 1,
                Outcome::Skipped => *met.entry("skipped".into()).or_default() += 1,
                _ => *met.entry(name).or_default() += 1,
            }
        }
        let look = reference.look(&[]);
        *met.entry("callbacks".into()).or_default() += look.called.len() as u64;
        for (_, pool, _) in &look.pools {
            let text = format!("{pool:?}");
            for part in text.trim_start_matches("Figures { ").split(", ") {
                if let Some((name, value)) = part.split_once(": ") {
                    *met.entry(format!("pools with {name}")).or_default() += u64::from(!value.starts_with('0'));
                }
            }
        }
        let spans = reference.spans();
        for (reason, count) in spans.iter().enumerate() {
            *met.entry(format!("span, reason {reason}")).or_default() += count;
        }
        for &case in reference.cases() {
            *met.entry(case.to_owned()).or_default() += 1;
        }
        *met.entry("ninth question".into()).or_default() += reference.ninth_questions();
    }
    println!("{calls} calls: {met:#?}");
    let reasons = (0..6).map(|reason| format!("reason {reason}"));
    // (A span of the stream's own alone has a whole block in it. None is FRESH.)
    let spans = (0..5).map(|reason| format!("span, reason {reason}"));
    let host = [1, 5].map(|reason| format!("host order, reason {reason}"));
    let statuses = ["CapacityExceeded", "Destroyed", "InvalidValue", "OutOfMemory", "SizeNotAccepted"];
    let failures = statuses.map(|status| format!("Alloc {status}"));
    let figures = [
        "failures",
        "host_syncs",
        "internal_waits",
        "merges",
        "page_frees",
        "page_refusals",
        "padding",
        "pending",
        "progress_queries",
        "release_failures",
        "splits",
        "unordered_frees",
    ]
    .map(|figure| format!("pools with {figure}"));
    let more = [
        "Access",
        "AddUser",
        "Find",
        "Free Freed",
        "Free Destroyed",
        "SyncEvent",
        "Trim",
        "DestroyPool",
        "callbacks",
        "entry 2",
        "padding before the address",
        "ninth question",
        "CreatePool InvalidConfig",
    ]
    .map(str::to_owned);
    let cases = [
        "a page at released addresses",
        "a range at released addresses",
        "no addresses left for a page",
        "no addresses left for a range",
        "addresses for a smaller range only",
        "the ranges of a destroyed pool dropped",
        "first range",
        "further range",
        "grown before policy 2",
        "refused to grow before policy 2",
        "not grown before policy 2: the release threshold",
        "the cap is in the way",
        "refused, and asked for fewer",
        "asked for more than is missing",
        "placed inside a chunk",
        "placed in a hole between blocks",
        "moved, never used",
        "moved, observed",
        "moved, own",
        "moved, by dependency",
        "moved, several points",
        "moved, executed",
        "what a block leaves of a moved chunk keeps its points",
        "a chunk of a block that is partly taken",
        "returned, observed",
        "returned, own",
        "returned, by dependency",
        "returned, executed",
        "idle in several blocks",
        "waited rather than hold more",
        "nothing to wait for",
        "stays whole",
        "a large whole block passed over",
        "a large whole block for want of another",
        "a whole block came back",
        "a multi block came back",
        "came back, and one serves",
        "came back, and none fits",
        "whole until it is observed",
        "a destroyed stream forgotten that has executed",
        "a destroyed stream forgotten when another was created",
        "some returned and some moved",
        "a ghost preferred to a lower place",
        "fewer ghosts preferred to a lower place",
        "no more than before the last pause",
        "a ghost that is not open",
        "placed further up, so as to take no chunk twice",
        "not at the high end, so as to take no chunk twice",
        "asked for no more: something is mapped there",
        "several streams: more chunks in use than bytes",
        "paused",
        "no pause: used by others as well",
        "no pause: often enough",
        "a chunk that cannot go home",
        "no pause: a block had users",
        "paused, with a never-used block",
        "paused, with an observed block",
        "home at a pause",
        "home at a synchronise",
        "a ghost dropped",
        "an observed ghost dropped",
        "a ghost not dropped before it has executed",
        "a home dropped",
        "given back with its ghosts",
        "reason by dependency",
        "not given back before it has executed",
        "given back",
        "given back after a period",
        "given back from several blocks",
        "recent: exactly as large",
        "recent: none, but a merged one exactly as large",
        "recent: one served that stopped being recent",
        "recent: one served when no other was left",
        "recent: a smaller one stayed",
    ]
    .map(str::to_owned);
    let mut missing = Vec::new();
    for case in cases.into_iter().chain(reasons).chain(spans).chain(host).chain(failures).chain(figures).chain(more) {
        if met.get(&case).is_none_or(|&count| count < 5) {
            missing.push(case);
        }
    }
    assert!(missing.is_empty(), "met less than 5 times in {calls} calls: {missing:?}");
}
