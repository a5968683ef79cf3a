# Installs the package and writes its uninstall target. No installed file holds an absolute path: the tree may be moved.
include(CMakePackageConfigHelpers)

set(smp_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/smp")

install(FILES "${SMP_LIB_DIR}/${smp_realname}" DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
install(FILES "${SMP_LIB_DIR}/${smp_soname}" "${SMP_LIB_DIR}/libsmp.so" "${SMP_LIB_DIR}/libsmp.a"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(SMP_PRELOAD)
  install(PROGRAMS "${SMP_LIB_DIR}/libsmp_preload.so" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(PROGRAMS "${SMP_LIB_DIR}/smp-run" DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # In a folder that no loader looks into: smp-run --stand-in alone puts it on the path.
  install(PROGRAMS "${SMP_LIB_DIR}/libsimcuda.so" DESTINATION "${CMAKE_INSTALL_LIBDIR}/smp/stand-in"
          RENAME libcuda.so.1)
endif()
install(FILES include/smp.h include/smp.hpp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT DESTINATION "${CMAKE_INSTALL_DOCDIR}")
# README refers to these.
install(DIRECTORY docs/ DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs" FILES_MATCHING PATTERN "*.md")

configure_package_config_file(cmake/smp-config.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/smp-config.cmake"
  INSTALL_DESTINATION "${smp_config_dir}"
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/smp-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/smp-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/smp-config-version.cmake"
        DESTINATION "${smp_config_dir}")

# pkg-config: paths relative to the .pc file's own folder, unless the user made them absolute.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(smp_pc_prefix "${CMAKE_INSTALL_PREFIX}")
  set(smp_pc_libdir "${CMAKE_INSTALL_FULL_LIBDIR}")
  set(smp_pc_includedir "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
else()
  file(RELATIVE_PATH smp_pc_up "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
  string(REGEX REPLACE "/$" "" smp_pc_up "${smp_pc_up}")
  set(smp_pc_prefix "\${pcfiledir}/${smp_pc_up}")
  set(smp_pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(smp_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
list(TRANSFORM SMP_STATIC_LIBS PREPEND "-l" OUTPUT_VARIABLE smp_pc_private)
list(JOIN smp_pc_private " " smp_pc_private)
configure_file(cmake/smp.pc.in "${CMAKE_CURRENT_BINARY_DIR}/smp.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/smp.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(SMP_INSTALL_EXAMPLES)
  install(DIRECTORY examples/ DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples")
endif()

configure_file(cmake/uninstall.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/uninstall.cmake" @ONLY)
if(NOT TARGET uninstall) # a parent project may have one
  add_custom_target(uninstall COMMAND "${CMAKE_COMMAND}" -P "${CMAKE_CURRENT_BINARY_DIR}/uninstall.cmake"
                    COMMENT "Removing what the last install wrote" VERBATIM)
endif()
