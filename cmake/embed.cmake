# Turns files into a C++ source: cmake -DOUTPUT=F.cc -DFILES="function=path;..." -P embed.cmake
set(text "#include \"api/http/embedded.h\"\n\nnamespace pagezip::http {\n")
foreach(entry ${FILES})
  string(REPLACE "=" ";" pair ${entry})
  list(GET pair 0 name)
  list(GET pair 1 path)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND text "namespace {\nconstexpr unsigned char kBytes_${name}[] = {${bytes}0};\n}\n"
         "std::string_view ${name}() {\n"
         "  return {reinterpret_cast<const char*>(kBytes_${name}), sizeof(kBytes_${name}) - 1};\n}\n")
endforeach()
string(APPEND text "}  // namespace pagezip::http\n")
file(WRITE ${OUTPUT} "${text}")
