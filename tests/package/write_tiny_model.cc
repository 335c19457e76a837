// Writes a model of random weights, for examples that need one: write_tiny_model PATH
#include "tests/cli_tests/tiny_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    return 2;
  }
  pagezip::TinyModel().writer().write(argv[1]);
  return 0;
}
