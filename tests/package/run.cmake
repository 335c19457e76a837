# Installs the build, moves the result, and builds and runs the examples and the programs of this
# folder against it: what a user does with the package.
#   cmake -DBUILD=DIR -DSOURCE=DIR -DWORK=DIR -DCC=COMPILER -DCXX=COMPILER -DWRITE_MODEL=PROGRAM
#         -P run.cmake
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
run(${WRITE_MODEL} ${WORK}/tiny.gguf)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed)
# A package that knows the place where it was installed doesn't survive this.
file(RENAME ${WORK}/installed ${WORK}/moved)

foreach(project IN ITEMS examples tests/package)
  set(build ${WORK}/${project})
  run(${CMAKE_COMMAND} --no-warn-unused-cli -S ${SOURCE}/${project} -B ${build} -G Ninja -DCMAKE_BUILD_TYPE=Release
      -DCMAKE_PREFIX_PATH=${WORK}/moved -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX}
      -DPAGEZIP_EXAMPLE_MODEL=${WORK}/tiny.gguf)
  run(${CMAKE_COMMAND} --build ${build})
  run(${CMAKE_CTEST_COMMAND} --test-dir ${build} --output-on-failure --no-tests=error)
endforeach()

# The shared library shows its C ABI and nothing of C++.
file(GLOB_RECURSE library ${WORK}/moved/libpagezip.so)
execute_process(COMMAND nm -D --defined-only ${library} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
list(LENGTH symbols count)
list(FILTER symbols EXCLUDE REGEX " T pagezip_[a-z0-9_]+$")
if(count EQUAL 0 OR symbols)
  message(FATAL_ERROR "${library} exports ${count} symbols, among them: ${symbols}")
endif()
