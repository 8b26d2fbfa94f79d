// The C ABI from many threads: handles that others release, and numbers that are none. Argument: a calbin file.
#include <climits>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "calexec_tables.hpp"
#include "calrt_c.h"
#include "check.hpp"

namespace {

using calrt_c::ShimBadHandle;

bool good_or_gone(int code) { return code == 0 || code == ShimBadHandle; }

// One thread replaces the calbin again and again while the others ask it: an answer, or "no handle", and nothing else.
void release_under_use(const char* path) {
    std::atomic<calrt_c_handle> calbin{0};
    std::atomic<bool> done{false};
    calrt_c_handle first = 0;
    CHECK(calrt_c_calbin_load(path, &first) == 0);
    calbin = first;
    std::vector<std::thread> askers;
    for (int i = 0; i < 3; ++i)
        askers.emplace_back([&] {
            while (!done) {
                uint32_t count = 0;
                calrt_c_model model;
                CHECK(good_or_gone(calrt_c_calbin_models(calbin, &count)));
                const int code = calrt_c_calbin_model(calbin, 0, &model);
                CHECK(good_or_gone(code));
                if (code == 0) CHECK(std::strlen(model.name) > 0 && model.max_seq > 0);
            }
        });
    for (int i = 0; i < 100; ++i) {
        calrt_c_handle next = 0;
        CHECK(calrt_c_calbin_load(path, &next) == 0);
        CHECK(calrt_c_calbin_release(calbin.exchange(next)) == 0);
    }
    done = true;
    for (std::thread& asker : askers) asker.join();
    CHECK(calrt_c_calbin_release(calbin) == 0);
}

// Every thread has its own last error, and random numbers are no handles.
void errors_belong_to_threads() {
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed)
        threads.emplace_back([seed] {
            std::mt19937_64 random(seed);
            for (int i = 0; i < 2000; ++i) {
                const calrt_c_handle number = random();
                int granted = 7;
                CHECK(calrt_c_kv_apply(number, 0, 1, &granted) == ShimBadHandle);
                CHECK(granted == 7);
                char text[128];
                CHECK(calrt_c_last_error(text, sizeof text) == 0);
                CHECK(std::string(text) == "calrt_c_kv_apply: " + std::to_string(number) + " is no handle");
            }
        });
    for (std::thread& thread : threads) thread.join();
}

// A device is opened, used and closed by one thread at a time, its children by all.
void devices(const char* path) {
    calrt_c_handle calbin = 0, device = 0;
    CHECK(calrt_c_calbin_load(path, &calbin) == 0);
    CHECK(calrt_c_device_open(11, &device) == 0);
    CHECK(calrt_c_device_configure(device, calbin) == 0);
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < 100; ++round) {
                calrt_c_handle kv = 0, input = 0, output = 0;
                uint32_t units = 0;
                CHECK(calrt_c_kv_create(device, &kv) == 0);
                CHECK(calrt_c_kv_units_total(kv, &units) == 0 && units > 0);
                CHECK(calrt_c_input_create(device, calbin, 0, &input) == 0);
                CHECK(calrt_c_output_create(device, calbin, 0, &output) == 0);
                CHECK(calrt_c_output_release(output) == 0);
                CHECK(calrt_c_input_release(input) == 0);
                CHECK(calrt_c_input_release(input) == ShimBadHandle);
                CHECK(calrt_c_kv_release(kv) == 0);
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(calrt_c_device_close(device) == 0);
    CHECK(calrt_c_calbin_release(calbin) == 0);
}

// What is no task type is CalRT's to refuse, and the process lives on.
void task_types(const char* path) {
    calrt_c_handle calbin = 0, device = 0, input = 0, output = 0;
    CHECK(calrt_c_calbin_load(path, &calbin) == 0);
    calrt_c_model model;
    calrt_c_tensor tensor;
    CHECK(calrt_c_device_open(12, &device) == 0);
    CHECK(calrt_c_device_configure(device, calbin) == 0);
    CHECK(calrt_c_calbin_model(calbin, 0, &model) == 0);
    CHECK(calrt_c_input_create(device, calbin, 0, &input) == 0);
    CHECK(calrt_c_output_create(device, calbin, 0, &output) == 0);
    std::vector<std::vector<char>> memory(model.tensors);
    char csr[CALRT_C_NAME_BYTES];
    for (uint32_t i = 0; i < model.tensors; ++i) {
        CHECK(calrt_c_calbin_tensor(calbin, 0, i, &tensor) == 0);
        memory[i].resize(tensor.byte_size);
        CHECK((tensor.is_output ? calrt_c_output_map_buf(output, tensor.name, memory[i].data(), tensor.byte_size)
                                : calrt_c_input_map_buf(input, tensor.name, memory[i].data(), tensor.byte_size)) == 0);
    }
    for (uint32_t i = 0; i < model.csrs; ++i) {
        CHECK(calrt_c_calbin_csr(calbin, 0, i, csr, sizeof csr) == 0);
        CHECK(calrt_c_input_set_csr(input, csr, 1) == 0);
    }
    CHECK(calrt_c_input_bind_sequence(input, 0) == 0);
    for (const int task : {7, 2, 1000, 100000000, -1, -2, INT_MAX, INT_MIN})
        CHECK(calrt_c_infer_with_fixed_task_type(device, calbin, 0, input, output, task) == calrt::IllegalValue);
    CHECK(calrt_c_output_release(output) == 0);
    CHECK(calrt_c_input_release(input) == 0);
    CHECK(calrt_c_device_close(device) == 0);
    CHECK(calrt_c_calbin_release(calbin) == 0);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    release_under_use(argv[1]);
    errors_belong_to_threads();
    devices(argv[1]);
    task_types(argv[1]);
    return failures();
}
