//! The CUDA device in situations that need a process of their own (`src/bin/cuda-cases.rs`), and what `libsmp.so` needs.

mod common;

use common::{library, program, succeeds};

const CASES: &str = env!("CARGO_BIN_EXE_cuda-cases");

fn case(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let mut command = program(CASES, arguments, 600);
    command.envs(environment.iter().copied());
    let found = succeeds(command);
    assert!(found.ends_with("ok\n"), "{found}");
    found
}

#[test]
fn a_steady_state_makes_no_driver_call_but_the_capture_check_and_none_without_it() {
    case(&["steady-state"], &[]);
}

#[test]
fn without_a_driver_library_cuda_is_refused_by_name_and_the_model_works() {
    case(&["refused", "/nowhere/libcuda.so.1"], &[("SMP_CUDA_LIBRARY", "/nowhere/libcuda.so.1")]);
}

#[test]
fn a_driver_that_is_too_old_is_refused_by_its_version() {
    case(&["refused", "the driver is of CUDA 10.1"], &[("SIMCUDA_DRIVER_VERSION", "10010")]);
}

#[test]
fn a_driver_without_devices_is_refused() {
    case(&["refused", "CUDA_ERROR_NO_DEVICE"], &[("SIMCUDA_DEVICES", "0")]);
}

#[test]
fn a_required_function_that_is_missing_is_named_and_without_another_only_its_feature_goes() {
    let symbols = case(&["entry-points"], &[]);
    let symbols: Vec<&str> = symbols.lines().filter(|line| line.starts_with("cu")).collect();
    assert!(symbols.len() > 40, "the entry points are listed");
    for symbol in symbols {
        case(&["missing", symbol], &[]);
    }
}

#[test]
fn another_current_context_stays_current() {
    case(&["another-context"], &[("SIMCUDA_DEVICES", "2")]);
}

#[test]
fn threads_that_give_pages_back_and_get_others_find_their_own_blocks() {
    case(&["pages-of-threads"], &[]);
}

#[test]
fn a_synchronised_stream_has_waited_for_the_legacy_stream_only_if_the_driver_was_given_something_to_wait_with() {
    for call in ["user", "free", "allocation", "crossed", "crossed to the legacy stream"] {
        case(&["nothing-to-wait-for", call], &[]);
    }
}

#[test]
fn what_the_driver_was_not_given_in_that_order_orders_nothing() {
    let refused = ["refused record", "refused wait", "refused record after the legacy stream's"];
    for what in refused.into_iter().chain(["not asked yet", "before", "recorded by two"]) {
        case(&["not-the-drivers-order", what], &[]);
    }
}

#[test]
fn of_a_stream_whose_context_has_ended_nothing_is_told() {
    case(&["context-gone"], &[]);
}

#[test]
fn a_device_that_is_named_is_that_of_the_stream_or_event() {
    case(&["wrong-device"], &[("SIMCUDA_DEVICES", "2")]);
}

#[test]
fn a_capturing_stream_is_refused_and_a_capture_is_not_broken() {
    case(&["capturing"], &[]);
}

#[test]
fn a_forked_child_is_refused() {
    case(&["forked"], &[]);
}

#[test]
fn a_record_past_the_library_replaces_what_was_seen_where_it_is_told() {
    for how in ["once", "untold", "told"] {
        case(&["recorded-again", how], &[]);
    }
}

#[test]
fn a_recycled_stream_handle_is_another_stream_in_checked_mode() {
    case(&["recycled", "checked"], &[]);
    case(&["recycled", "believed"], &[]);
}

#[test]
fn a_stream_that_has_ended_is_another_for_every_device_when_its_handle_comes_back() {
    case(&["recycled-by-the-library"], &[]);
}

#[test]
fn streams_that_go_by_the_drivers_name_or_none_have_no_handle_besides() {
    case(&["own-names"], &[]);
}

#[test]
fn default_streams_are_cudas() {
    case(&["default-streams"], &[]);
}

#[test]
fn the_models_figures_of_a_driver_pool_are_the_drivers() {
    case(&["driver-figures"], &[]);
}

#[test]
fn libsmp_needs_nothing_of_cuda_and_works_without_a_driver() {
    let libsmp = library("libsmp.so");
    let output = std::process::Command::new("readelf").arg("-d").arg(&libsmp).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let needed: Vec<&str> = text.lines().filter(|line| line.contains("NEEDED")).collect();
    assert!(output.status.success() && !needed.is_empty(), "readelf lists what libsmp.so needs");
    assert!(!text.to_lowercase().contains("cuda") && !text.to_lowercase().contains("nvidia"), "{text}");
    let libsmp = libsmp.to_str().unwrap();
    case(&["library-without-driver"], &[("SMP_LIBRARY", libsmp), ("SMP_CUDA_LIBRARY", "/nowhere/libcuda.so.1")]);
}
