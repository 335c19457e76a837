# The package: `find_package(pagezip)` gives pagezip::pagezip, the shared library with the C ABI;
# `find_package(pagezip COMPONENTS cpp)` also pagezip::engine and what it stands on, static
# libraries with the C++ headers of this tree, which may change with every version.
include(CMakePackageConfigHelpers)

install(TARGETS pagezip_c EXPORT pagezipTargets)
install(FILES api/pagezip.h api/pagezip.hpp api/pagezip_engine.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(CPP_LIBRARIES base kernels paging scheduler engine)
foreach(library IN LISTS CPP_LIBRARIES)
  set_target_properties(pagezip_${library} PROPERTIES EXPORT_NAME ${library})
  install(TARGETS pagezip_${library} EXPORT pagezipCppTargets)
  install(
    DIRECTORY ${library}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pagezip
    FILES_MATCHING
    PATTERN "*.h"
    PATTERN "kernels/cpu" EXCLUDE
    PATTERN "kernels/reference" EXCLUDE)
endforeach()

if(PAGEZIP_CUDA)
  set_target_properties(pagezip_cuda PROPERTIES EXPORT_NAME cuda)
  install(TARGETS pagezip_cuda EXPORT pagezipCppTargets)
endif()

set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pagezip)
configure_package_config_file(
  cmake/pagezipConfig.cmake.in ${PROJECT_BINARY_DIR}/pagezipConfig.cmake
  INSTALL_DESTINATION ${PACKAGE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/pagezipConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pagezipConfig.cmake
              ${PROJECT_BINARY_DIR}/pagezipConfigVersion.cmake DESTINATION ${PACKAGE_DIR})
install(EXPORT pagezipTargets NAMESPACE pagezip:: DESTINATION ${PACKAGE_DIR})
install(EXPORT pagezipCppTargets NAMESPACE pagezip:: DESTINATION ${PACKAGE_DIR})
