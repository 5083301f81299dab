# Headers and libraries of the torch that belongs to the building interpreter. TorchConfig.cmake is not used: it
# pulls in MKL and CUDA lookups that a stable-ABI library has no use for.
execute_process(
  COMMAND ${Python3_EXECUTABLE} -c "import torch, os; print(torch.__version__); print(os.path.dirname(torch.__file__))"
  OUTPUT_VARIABLE torch_facts ERROR_VARIABLE torch_error RESULT_VARIABLE torch_missing OUTPUT_STRIP_TRAILING_WHITESPACE)
if(torch_missing)
  message(FATAL_ERROR
    "quantfarm-cpu is built against the torch of the interpreter ${Python3_EXECUTABLE}, which has none: "
    "run  python -m pip install 'torch>=2.10' scikit-build-core cmake ninja  and then build with "
    "python -m build --wheel --no-isolation  (or pip wheel --no-build-isolation)")
endif()
string(REPLACE "\n" ";" torch_facts "${torch_facts}")
list(GET torch_facts 0 TORCH_VERSION)
list(GET torch_facts -1 TORCH_ROOT)
if(TORCH_VERSION VERSION_LESS 2.10)
  message(FATAL_ERROR "quantfarm-cpu: torch: needs 2.10 or newer, got ${TORCH_VERSION}")
endif()
message(STATUS "torch ${TORCH_VERSION}, stable ABI target 2.10")

# Oldest torch that the library runs under. 2.10 brought parallel_for to the stable ABI.
set(TORCH_ABI_TARGET 2.10)
add_library(torch_stable INTERFACE)
target_include_directories(torch_stable SYSTEM INTERFACE ${TORCH_ROOT}/include)
target_compile_definitions(torch_stable INTERFACE TORCH_TARGET_VERSION=0x020a000000000000 TORCH_STABLE_ONLY)
# Without the needed entries the loader finds no libtorch and ends in an undefined symbol.
target_link_options(torch_stable INTERFACE -L${TORCH_ROOT}/lib -Wl,--no-as-needed -ltorch -ltorch_cpu -lc10
  -Wl,--as-needed)
