//! Switches that turn one rule off, in test builds only (feature `rule-switches`, environment `SMP_RULE_OFF`).
//!
//! They exist to show that the tests notice: `scripts/rules.sh` turns each off and prints which tests go red. Those named
//! `cuda-` act on CUDA devices only, and `cuda_tests` shows that each is caught by wrong bytes. In a build without the
//! feature `off` is the constant `false`.

macro_rules! rules {
    ($($name:ident = $text:literal, $what:literal;)*) => {
        /// Every switch: its name in `SMP_RULE_OFF`, and the rule it turns off.
        pub const ALL: &[(&str, &str)] = &[$(($text, $what)),*];
        $(pub(crate) const $name: &str = $text;)*
    };
}

rules! {
    SAME_STREAM = "same-stream", "a block freed on a stream is reusable at once on that stream";
    OBSERVED = "observed", "frees the host has observed are reusable by any stream";
    POLICY1 = "policy-1", "frees that precede by dependency are reusable";
    POLICY2 = "policy-2", "frees that have executed are reusable";
    ENDED = "ended-streams", "a destroyed stream that policy 2 finds executed to its end is forgotten";
    POLICY3 = "policy-3", "when nothing serves, the stream is made to wait for a free";
    POLICY1_ATTRIBUTE = "policy-1-attribute", "attribute 1 turns policy 1 off";
    MERGE = "merge", "free neighbours of one owner merge";
    USERS = "added-users", "a block is reusable only after every user's point";
    CAPS = "caps", "max_pool_size is a hard cap";
    RECLAIM = "reclaim", "a direct entry gives back above its watermark";
    PERIOD = "dealloc-period", "a page unused for a whole period goes back";
    THRESHOLD = "release-threshold", "a synchronise gives back what is above the threshold";
    RELEASE_EXECUTED = "release-executed", "a page goes back only when its free points have executed or are observed";
    OOM_RELEASE = "oom-release", "a refused page makes free pages go back and the request be tried again";
    CHUNK_MOVES = "chunk-moves", "idle chunks are moved before the device is asked for more";
    CHUNK_LEAVING = "chunk-leaving", "a chunk is unmapped from where it served only when its free points there have executed";
    CHUNK_POINTS = "chunk-points", "what a block leaves of a moved chunk keeps the chunk's free points";
    TIGHT = "tight-entries", "an entry that often lacks a few chunks gets a little more room, and its large blocks merge when they are freed";
    WHOLE_BLOCKS = "whole-blocks", "a block of a chunk or more that is freed on another stream than it was allocated on does not merge";
    GROWTH_WAITS = "growth-waits", "before unfinished frees make an entry hold twice what was ever used, a stream waits for one";
    SYNC_OBSERVES = "sync-closure", "a synchronise observes what the stream depended on";
    LEGACY = "legacy-barrier", "work on the legacy stream orders all blocking streams";
    TRANSITIVE = "transitive", "an event carries what its stream was ordered after";
    CUDA_SAME_STREAM = "cuda-same-stream", "on CUDA only what was freed on a stream is the stream's own";
    CUDA_OBSERVED = "cuda-observed", "on CUDA a stream's synchronise observes only that stream and what it depended on";
    CUDA_EVENT = "cuda-event", "on CUDA an event covers only what its stream was given before it";
    CUDA_EXECUTED = "cuda-executed", "on CUDA a free has executed only when the driver says so";
    CUDA_WAIT = "cuda-wait", "on CUDA policy 3 has the driver make the stream wait";
}

/// The named rule is turned off.
#[cfg(not(feature = "rule-switches"))]
#[inline(always)]
pub(crate) const fn off(_rule: &str) -> bool {
    false
}

/// The named rule is turned off.
#[cfg(feature = "rule-switches")]
pub(crate) fn off(rule: &str) -> bool {
    static OFF: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    OFF.get_or_init(|| std::env::var("SMP_RULE_OFF").unwrap_or_default()) == rule
}
