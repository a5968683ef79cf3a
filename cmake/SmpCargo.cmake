# Runs cargo and names its results: the imported targets smp::smp (shared) and smp::smp-static, as the installed package
# has them, so that the tests and a project that adds this folder with add_subdirectory() link by the same names.

if(DEFINED ENV{CARGO})
  set(SMP_CARGO "$ENV{CARGO}" CACHE FILEPATH "The cargo that builds the library")
endif()
find_program(SMP_CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin"
             DOC "The cargo that builds the library")
if(NOT SMP_CARGO)
  message(FATAL_ERROR "cargo was not found: install Rust, or name it with -DSMP_CARGO=... or the CARGO variable")
endif()

# What a program needs besides libsmp.a: rustc's list of native libraries (--print native-static-libs) for this target.
set(SMP_STATIC_LIBS gcc_s util rt pthread m dl c)

set(smp_soname "libsmp.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set(smp_realname "libsmp.so.${PROJECT_VERSION}")
set(smp_cargo_dir "${CMAKE_CURRENT_BINARY_DIR}/cargo")
set(SMP_LIB_DIR "${CMAKE_CURRENT_BINARY_DIR}/lib" CACHE INTERNAL "Where the built libraries lie")

set(smp_cargo_env "CARGO_TARGET_DIR=${smp_cargo_dir}")
# The crate is an rlib too, for the tests; built as that as well, it would not be optimised across crates.
set(smp_cargo_args rustc --package smp --lib --release --locked --crate-type cdylib,staticlib)
set(smp_cargo_out "${smp_cargo_dir}/release")
set(SMP_CARGO_FEATURES "" CACHE STRING "Cargo features to build with, separated by commas; none is for shipping")
mark_as_advanced(SMP_CARGO_FEATURES)
if(SMP_CARGO_FEATURES)
  list(APPEND smp_cargo_args --features "${SMP_CARGO_FEATURES}")
endif()
add_library(smp_sanitize INTERFACE) # what the C side of a sanitized build compiles and links with

if(SMP_SANITIZE)
  if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    message(FATAL_ERROR "SMP_SANITIZE works on x86_64 only")
  endif()
  set(smp_target "x86_64-unknown-linux-gnu")
  # -Zsanitizer is an unstable option of rustc. RUSTC_BOOTSTRAP=1 makes the stable compiler take it; nothing that is
  # shipped is built so. --target keeps the flags away from build scripts, which run unsanitized. Link-time optimisation
  # is off because it gains nothing here, and overflow checks and debug assertions are on because they find more.
  list(APPEND smp_cargo_env RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
       CARGO_PROFILE_RELEASE_OPT_LEVEL=2 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
       CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true)
  list(APPEND smp_cargo_args --target ${smp_target})
  set(smp_cargo_out "${smp_cargo_dir}/${smp_target}/release")
  target_compile_options(smp_sanitize INTERFACE -fsanitize=${SMP_SANITIZE} -fno-omit-frame-pointer -g)
  if(SMP_SANITIZE STREQUAL "address")
    # rustc puts no sanitizer run time into a library; the C program brings gcc's, whose interface is the same.
    list(APPEND smp_cargo_env "RUSTFLAGS=-Zsanitizer=address")
    target_link_options(smp_sanitize INTERFACE -fsanitize=address)
  elseif(SMP_SANITIZE STREQUAL "thread")
    # std is not instrumented, which rustc calls an ABI mismatch unless told that it is meant. gcc's libtsan lacks
    # entry points that rustc's code calls (__tsan_memcpy), so the program gets the run time that comes with Rust, and
    # exports it to the shared library.
    list(APPEND smp_cargo_env "RUSTFLAGS=-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer")
    get_filename_component(smp_cargo_bin "${SMP_CARGO}" DIRECTORY)
    find_program(SMP_RUSTC rustc HINTS "${smp_cargo_bin}" REQUIRED DOC "The rustc beside SMP_CARGO")
    execute_process(COMMAND "${SMP_RUSTC}" --print sysroot OUTPUT_VARIABLE smp_sysroot
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
    file(GLOB smp_tsan_runtime "${smp_sysroot}/lib/rustlib/${smp_target}/lib/librustc-*_rt.tsan.a")
    if(NOT smp_tsan_runtime)
      message(FATAL_ERROR "this Rust toolchain has no ThreadSanitizer run time under ${smp_sysroot}")
    endif()
    target_link_options(smp_sanitize INTERFACE -rdynamic
      "LINKER:--whole-archive,${smp_tsan_runtime},--no-whole-archive")
    target_link_libraries(smp_sanitize INTERFACE pthread rt m dl)
  else()
    message(FATAL_ERROR "SMP_SANITIZE is \"${SMP_SANITIZE}\"; it must be empty, address or thread")
  endif()
endif()

# The preload library, its runner and the stand-in driver that the runner can use: on x86-64 only, and in no sanitized build, whose run time has a dlsym of its own.
set(smp_preload_steps "")
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND NOT SMP_SANITIZE AND NOT SMP_CARGO_FEATURES)
  set(SMP_PRELOAD ON)
  set(smp_preload_steps
    COMMAND "${CMAKE_COMMAND}" -E env ${smp_cargo_env} "${SMP_CARGO}" build --package smp-preload --package simcuda
            --release --locked
    COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${smp_cargo_dir}/release/libsmp_preload.so"
            "${smp_cargo_dir}/release/smp-run" "${smp_cargo_dir}/release/libsimcuda.so" "${SMP_LIB_DIR}")
endif()

list(JOIN smp_cargo_args " " smp_cargo_line)
# cargo knows best what is out of date, so it is asked at every build. The results are copied only when they changed:
# otherwise every test would be linked again.
add_custom_target(smp_cargo ALL
  COMMAND "${CMAKE_COMMAND}" -E env ${smp_cargo_env} "${SMP_CARGO}" ${smp_cargo_args}
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${SMP_LIB_DIR}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${smp_cargo_out}/libsmp.so" "${SMP_LIB_DIR}/${smp_realname}"
  COMMAND "${CMAKE_COMMAND}" -E copy_if_different "${smp_cargo_out}/libsmp.a" "${SMP_LIB_DIR}/libsmp.a"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${smp_realname}" "${SMP_LIB_DIR}/${smp_soname}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${smp_soname}" "${SMP_LIB_DIR}/libsmp.so"
  ${smp_preload_steps}
  BYPRODUCTS "${SMP_LIB_DIR}/${smp_realname}" "${SMP_LIB_DIR}/libsmp.a"
  WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
  COMMENT "cargo ${smp_cargo_line}"
  USES_TERMINAL VERBATIM)

add_library(smp::smp SHARED IMPORTED GLOBAL)
set_target_properties(smp::smp PROPERTIES
  IMPORTED_LOCATION "${SMP_LIB_DIR}/${smp_realname}"
  IMPORTED_SONAME "${smp_soname}"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}/include")
add_dependencies(smp::smp smp_cargo)

add_library(smp::smp-static STATIC IMPORTED GLOBAL)
set_target_properties(smp::smp-static PROPERTIES
  IMPORTED_LOCATION "${SMP_LIB_DIR}/libsmp.a"
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}/include"
  INTERFACE_LINK_LIBRARIES "${SMP_STATIC_LIBS}")
add_dependencies(smp::smp-static smp_cargo)
