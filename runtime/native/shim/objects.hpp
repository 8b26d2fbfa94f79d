// What stands behind each kind of handle. An object keeps alive what CalRT's own object may refer to, and is destroyed
// before it (members go in reverse order): a buffer its device and its calbin, a KV manager its device.
#pragma once

#include <memory>
#include <string>

#include "calrt/calrt.hpp"
#include "handles.hpp"
#include "order.hpp"

namespace calrt_c {

template <Kind K>
struct ObjectOf : Object {
    static constexpr Kind is = K;
    Kind kind() const override { return K; }
};

struct Calbin : ObjectOf<Kind::Calbin> {
    std::shared_ptr<calrt::Calbin> calrt;
};

struct Device : ObjectOf<Kind::Device> {
    std::shared_ptr<calrt::VirtualDevice> calrt;
    Order order{device_order, abi_device_Open};
};

struct Kv : ObjectOf<Kind::Kv> {
    std::shared_ptr<calrt::VirtualDevice> device;
    std::shared_ptr<calrt::KvManager> calrt;
};

struct Input : ObjectOf<Kind::Input> {
    std::shared_ptr<calrt::VirtualDevice> device;
    std::shared_ptr<calrt::Calbin> calbin;
    std::shared_ptr<calrt::CalrtInputBuf> calrt;
    Order order{input_order, abi_input_Empty};
};

struct Output : ObjectOf<Kind::Output> {
    std::shared_ptr<calrt::VirtualDevice> device;
    std::shared_ptr<calrt::Calbin> calbin;
    std::shared_ptr<calrt::CalrtOutputBuf> calrt;
    Order order{output_order, abi_output_Empty};
    std::weak_ptr<Input> submitted_with;  // the input of the last job; guarded by order_mutex
};

// The object behind a handle of the kind that T is. Throws Refusal.
template <typename T>
std::shared_ptr<T> get(std::uint64_t handle) {
    std::shared_ptr<Object> object = handles().find(handle);
    if (!object) throw Refusal{ShimBadHandle, handles().why_not(handle)};
    if (object->kind() != T::is)
        throw Refusal{ShimBadHandle, Number::of(handle).text() + " is not of kind " + kind_name(T::is)};
    return std::static_pointer_cast<T>(object);
}

// Kills the handle. The object goes when the last call on it has returned.
template <typename T>
int release(std::uint64_t handle) {
    get<T>(handle);
    if (!handles().take(handle)) throw Refusal{ShimBadHandle, handles().why_not(handle)};
    return 0;
}

template <typename T>
void need(const T* pointer, const char* name) {
    if (pointer == nullptr) throw Refusal{ShimBadArgument, std::string(name) + " is NULL"};
}

}  // namespace calrt_c
