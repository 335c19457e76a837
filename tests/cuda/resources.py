#!/usr/bin/env python3
"""Registers and spills of every CUDA kernel, as ptxas reports them, against the table beside this.

  resources.py          builds the `cuda` preset; fails if a kernel needs more than the table says
  resources.py --update writes the table

Exit code 77 where nvcc isn't installed: ctest counts that as skipped.
"""
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = os.path.join(ROOT, "tests", "cuda", "resources.txt")
BUILD = os.path.join(ROOT, "build", "cuda")
HEAD = "# architecture, registers, bytes of stack, bytes of spills, kernel\n"
# Decode (one warp of rows), scores, selection, compaction and appending keep all in registers.
NO_SPILLS = re.compile(r"^(attend_kernel<.*, 1, (true|false)>|score_kernel|select_|compact_|append_)")
ENTRY = re.compile(
    r"Compiling entry function '(\w+)' for '(sm_\d+)'.*?(\d+) bytes stack frame, "
    r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.S)
TYPES = {"0": "f32", "1": "f16", "2": "bf16", "3": "i8", "4": "i4"}


def find_nvcc():
    usual = "/usr/local/cuda/bin/nvcc"
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or (
        usual if os.access(usual, os.X_OK) else None)


def readable(mangled):
    """attend_kernel<f16, f16, 128, plain, 1, true> and the like."""
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout
    name = re.sub(r"pagezip::(cuda::)?|^void |\((?!.*KvType).*\)$", "", name.strip())
    name = re.sub(r"\(KvType\)(\d)", lambda match: TYPES[match[1]], name)
    name = re.sub(r"(\d+), (true|false)>",
                  lambda match: f"{match[1]}, {'transposed' if match[2] == 'true' else 'plain'}>",
                  name, count=1)
    return re.sub(r"(Attend|Tile)Traits<|>(?=,| >)| >", "", name) + (">" if "<" in name else "")


def build(nvcc):
    environment = dict(os.environ, CUDACXX=nvcc)
    for command in (["cmake", "--preset", "cuda"], ["cmake", "--build", "--preset", "cuda"]):
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def measured():
    """{(architecture, kernel): (registers, stack, spills)}"""
    table = {}
    for folder, _, files in os.walk(BUILD):
        for file in files:
            if file.endswith(".cu.o.log"):
                with open(os.path.join(folder, file), encoding="utf-8") as log:
                    for entry in ENTRY.findall(log.read()):
                        mangled, architecture, stack, stores, loads, registers = entry
                        table[architecture, readable(mangled)] = (
                            int(registers), int(stack), int(stores) + int(loads))
    return table


def expected():
    table = {}
    with open(TABLE, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                architecture, registers, stack, spills, kernel = line.rstrip("\n").split(None, 4)
                table[architecture, kernel] = (int(registers), int(stack), int(spills))
    return table


def findings(now, before):
    found = [f"{key[0]} {key[1]}: not in the table" for key in now.keys() - before.keys()]
    found += [f"{key[0]} {key[1]}: in the table only" for key in before.keys() - now.keys()]
    for key in now.keys() & before.keys():
        for what, new, old in zip(("registers", "bytes of stack", "bytes of spills"), now[key],
                                  before[key]):
            if new > old:
                found.append(f"{key[0]} {key[1]}: {new} {what}, {old} before")
    for key, (_, _, spills) in now.items():
        if spills > 0 and NO_SPILLS.match(key[1]):
            found.append(f"{key[0]} {key[1]}: spills")
    return sorted(found)


def check_rules():
    """The comparison can fail."""
    one = {("sm_80", "score_kernel<f16>"): (100, 0, 0)}
    assert findings(one, one) == []
    for worse in ((101, 0, 0), (100, 8, 0), (90, 0, 4)):
        assert findings({("sm_80", "score_kernel<f16>"): worse}, one)
    assert findings({}, one) and findings(one, {})


def main():
    check_rules()
    nvcc = find_nvcc()
    if nvcc is None:
        print("skipped: nvcc is not installed")
        return 77
    build(nvcc)
    now = measured()
    if sys.argv[1:] == ["--update"]:
        with open(TABLE, "w", encoding="utf-8") as out:
            out.write(HEAD)
            for (architecture, kernel), (registers, stack, spills) in sorted(now.items()):
                out.write(f"{architecture} {registers:3} {stack:4} {spills:4}  {kernel}\n")
        return 0
    found = findings(now, expected())
    print("\n".join(found) or f"{len(now)} kernels as in the table or better")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
