# libquantfarm_cpu.so. Every folder of cpu/ except common/ is a kernel: its kernel_<level>.cpp files are compiled for
# that level only, all other files for the x86-64 baseline, so that nothing newer runs before CPUID was asked.
set(levels avx2 avx512 avx512_vnni)
set(flags_avx2 -mavx2 -mfma -mf16c)
set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(flags_avx512_vnni ${flags_avx512} -mavx512vnni)

option(QUANTFARM_AVX2 "compile the AVX2 level" ON)
option(QUANTFARM_AVX512 "compile the AVX512 F/BW/VL/DQ level" ON)
option(QUANTFARM_AVX512_VNNI "compile the AVX512 VNNI level" ON)

file(GLOB kernel_folders CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/cpu ${CMAKE_CURRENT_SOURCE_DIR}/cpu/*)
list(REMOVE_ITEM kernel_folders common)
file(GLOB sources CONFIGURE_DEPENDS cpu/common/*.cpp)
add_library(quantfarm_cpu SHARED ${sources})

set(manifest_rows "")
foreach(kernel IN LISTS kernel_folders)
  file(GLOB kernel_sources CONFIGURE_DEPENDS cpu/${kernel}/*.cpp)
  if(NOT kernel_sources)
    message(FATAL_ERROR "cpu/${kernel} holds no source: remove the folder or add the kernel")
  endif()
  foreach(level IN LISTS levels)
    set(source ${CMAKE_CURRENT_SOURCE_DIR}/cpu/${kernel}/kernel_${level}.cpp)
    list(REMOVE_ITEM kernel_sources ${source})
    string(TOUPPER ${level} option)
    if(NOT EXISTS ${source})
      continue()
    elseif(QUANTFARM_${option})
      target_sources(quantfarm_cpu PRIVATE ${source})
      # GCC 12 warns about its own intrinsics (their "undefined" operand is x = x); it is off for these files only.
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags_${level}};-Wno-maybe-uninitialized;-Wno-uninitialized")
      list(APPEND manifest_rows --kernel ${kernel}:x86_64_${level})
    else()
      list(APPEND manifest_rows --skipped "${kernel}:x86_64_${level}:left out by the build option QUANTFARM_${option}=OFF")
    endif()
  endforeach()
  target_sources(quantfarm_cpu PRIVATE ${kernel_sources})
endforeach()

foreach(level IN LISTS levels)
  string(TOUPPER ${level} option)
  if(QUANTFARM_${option})
    target_compile_definitions(quantfarm_cpu PRIVATE QUANTFARM_HAS_${option}=1)
  else()
    target_compile_definitions(quantfarm_cpu PRIVATE QUANTFARM_HAS_${option}=0)
  endif()
endforeach()

# -ffp-contract=off: products and sums are contracted where the source says so, on every level alike.
# -ffile-prefix-map: checks in torch's headers print __FILE__, which must not tell where the library was built.
target_compile_options(quantfarm_cpu PRIVATE -march=x86-64 -mtune=generic -O3 -Wall -Wextra -ffp-contract=off
  -fvisibility=hidden -fvisibility-inlines-hidden -fno-math-errno
  -ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=csrc -ffile-prefix-map=${TORCH_ROOT}=torch
  -ffile-prefix-map=${CMAKE_CURRENT_BINARY_DIR}=build)
find_package(Threads REQUIRED)
target_link_libraries(quantfarm_cpu PRIVATE torch_stable Threads::Threads)
target_link_options(quantfarm_cpu PRIVATE -Wl,-z,now -Wl,-z,relro -Wl,--build-id=none -Wl,--gc-sections -s)
set_target_properties(quantfarm_cpu PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "" SKIP_BUILD_RPATH ON)

# The manifest is read from the finished library, not from what this file hoped for.
set(manifest ${CMAKE_CURRENT_BINARY_DIR}/manifest.json)
add_custom_command(OUTPUT ${manifest} DEPENDS quantfarm_cpu tools/write_manifest.py
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/write_manifest.py
    --library $<TARGET_FILE:quantfarm_cpu> --out ${manifest} --package quantfarm-cpu --version "${SKBUILD_PROJECT_VERSION}"
    --family cpu --torch-abi ${TORCH_ABI_TARGET} --torch-built ${TORCH_VERSION}
    --compiler ${CMAKE_CXX_COMPILER_ID} --compiler-version ${CMAKE_CXX_COMPILER_VERSION} ${manifest_rows}
  VERBATIM)
add_custom_target(manifest ALL DEPENDS ${manifest})
install(TARGETS quantfarm_cpu LIBRARY DESTINATION .)
install(FILES ${manifest} DESTINATION .)
