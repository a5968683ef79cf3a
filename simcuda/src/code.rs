//! CUDA's result codes: the numbers and names of the public header.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// A result code other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

/// What the inside answers; the boundary turns `Ok` into 0.
pub type Result<T> = std::result::Result<T, Code>;

#[allow(missing_docs)]
pub const INVALID_VALUE: Code = Code(1);
#[allow(missing_docs)]
pub const OUT_OF_MEMORY: Code = Code(2);
#[allow(missing_docs)]
pub const NOT_INITIALIZED: Code = Code(3);
#[allow(missing_docs)]
pub const DEINITIALIZED: Code = Code(4);
#[allow(missing_docs)]
pub const NO_DEVICE: Code = Code(100);
#[allow(missing_docs)]
pub const INVALID_DEVICE: Code = Code(101);
#[allow(missing_docs)]
pub const INVALID_IMAGE: Code = Code(200);
#[allow(missing_docs)]
pub const INVALID_CONTEXT: Code = Code(201);
#[allow(missing_docs)]
pub const FILE_NOT_FOUND: Code = Code(301);
#[allow(missing_docs)]
pub const INVALID_HANDLE: Code = Code(400);
#[allow(missing_docs)]
pub const NOT_FOUND: Code = Code(500);
#[allow(missing_docs)]
pub const NOT_READY: Code = Code(600);
#[allow(missing_docs)]
pub const ILLEGAL_ADDRESS: Code = Code(700);
#[allow(missing_docs)]
pub const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
#[allow(missing_docs)]
pub const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
#[allow(missing_docs)]
pub const PEER_ACCESS_UNSUPPORTED: Code = Code(217);
#[allow(missing_docs)]
pub const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
#[allow(missing_docs)]
pub const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
#[allow(missing_docs)]
pub const CONTEXT_IS_DESTROYED: Code = Code(709);
#[allow(missing_docs)]
pub const PRIMARY_CONTEXT_ACTIVE: Code = Code(708);
#[allow(missing_docs)]
pub const NOT_PERMITTED: Code = Code(800);
#[allow(missing_docs)]
pub const NOT_SUPPORTED: Code = Code(801);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_UNSUPPORTED: Code = Code(900);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_INVALIDATED: Code = Code(901);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_MERGE: Code = Code(902);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_UNMATCHED: Code = Code(903);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_UNJOINED: Code = Code(904);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_ISOLATION: Code = Code(905);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_IMPLICIT: Code = Code(906);
#[allow(missing_docs)]
pub const CAPTURED_EVENT: Code = Code(907);
#[allow(missing_docs)]
pub const STREAM_CAPTURE_WRONG_THREAD: Code = Code(908);
#[allow(missing_docs)]
pub const UNKNOWN: Code = Code(999);
#[allow(missing_docs)]
pub const ILLEGAL_STATE: Code = Code(401);

impl Code {
    /// Whether the device is lost once this has happened: every later call on its contexts answers the same.
    pub fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 226 | 700 | 702 | 710 | 714..=719)
    }
}

/// All codes the public header names.
const NAMES: &[(u32, &str)] = &[
    (0, "CUDA_SUCCESS"),
    (1, "CUDA_ERROR_INVALID_VALUE"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY"),
    (3, "CUDA_ERROR_NOT_INITIALIZED"),
    (4, "CUDA_ERROR_DEINITIALIZED"),
    (5, "CUDA_ERROR_PROFILER_DISABLED"),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED"),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED"),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED"),
    (34, "CUDA_ERROR_STUB_LIBRARY"),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (100, "CUDA_ERROR_NO_DEVICE"),
    (101, "CUDA_ERROR_INVALID_DEVICE"),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED"),
    (200, "CUDA_ERROR_INVALID_IMAGE"),
    (201, "CUDA_ERROR_INVALID_CONTEXT"),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT"),
    (205, "CUDA_ERROR_MAP_FAILED"),
    (206, "CUDA_ERROR_UNMAP_FAILED"),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED"),
    (208, "CUDA_ERROR_ALREADY_MAPPED"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED"),
    (211, "CUDA_ERROR_NOT_MAPPED"),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY"),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT"),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    (218, "CUDA_ERROR_INVALID_PTX"),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED"),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"),
    (225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"),
    (226, "CUDA_ERROR_CONTAINED"),
    (300, "CUDA_ERROR_INVALID_SOURCE"),
    (301, "CUDA_ERROR_FILE_NOT_FOUND"),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM"),
    (400, "CUDA_ERROR_INVALID_HANDLE"),
    (401, "CUDA_ERROR_ILLEGAL_STATE"),
    (402, "CUDA_ERROR_LOSSY_QUERY"),
    (500, "CUDA_ERROR_NOT_FOUND"),
    (600, "CUDA_ERROR_NOT_READY"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT"),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (710, "CUDA_ERROR_ASSERT"),
    (711, "CUDA_ERROR_TOO_MANY_PEERS"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
    (718, "CUDA_ERROR_INVALID_PC"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK"),
    (800, "CUDA_ERROR_NOT_PERMITTED"),
    (801, "CUDA_ERROR_NOT_SUPPORTED"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED"),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE"),
    (807, "CUDA_ERROR_MPS_SERVER_NOT_READY"),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"),
    (809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED"),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED"),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"),
    (907, "CUDA_ERROR_CAPTURED_EVENT"),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"),
    (909, "CUDA_ERROR_TIMEOUT"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE"),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"),
    (916, "CUDA_ERROR_KEY_ROTATION"),
    (999, "CUDA_ERROR_UNKNOWN"),
];

/// Name and a description (the name in plain words) of a code; `None` for a number the header does not have.
pub fn texts(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    static TEXTS: OnceLock<Vec<(u32, CString, CString)>> = OnceLock::new();
    let table = TEXTS.get_or_init(|| {
        let plain = |name: &str| match name {
            "CUDA_SUCCESS" => "no error".to_owned(),
            _ => name.trim_start_matches("CUDA_ERROR_").to_lowercase().replace('_', " "),
        };
        NAMES
            .iter()
            .filter_map(|(code, name)| Some((*code, CString::new(*name).ok()?, CString::new(plain(name)).ok()?)))
            .collect()
    });
    table.iter().find(|row| row.0 == code).map(|row| (row.1.as_c_str(), row.2.as_c_str()))
}
