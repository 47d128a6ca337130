// The C++ side of a device that is not there: what torch asks of CUDA's library, answered for one device with one stream (those
// of Python are in streams.py). `pretend(true)` puts the answers in place, `pretend(false)` takes them away again.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/device_lazy_init.h>

#include <map>
#include <mutex>
#include <new>

namespace {

using namespace c10;
constexpr DeviceType CUDA = DeviceType::CUDA;

struct Guard final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return CUDA; }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Device getDevice() const override { return Device(CUDA, 0); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device device) const noexcept override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};

std::mutex mutex;
std::map<const char*, size_t> pinned;  // begin -> bytes

void free_pinned(void* data) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    pinned.erase(static_cast<const char*>(data));
  }
  GetCPUAllocator()->raw_deallocate(data);
}

// The CPU's memory, of which it is known where it is.
struct PinnedMemory final : Allocator {
  DataPtr allocate(size_t bytes) override {
    void* data = GetCPUAllocator()->raw_allocate(bytes);
    std::lock_guard<std::mutex> lock(mutex);
    pinned[static_cast<const char*>(data)] = bytes;
    return {data, data, &free_pinned, Device(DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Guard guard;
PinnedMemory pinned_memory;

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  DeviceIndex deviceCount() const override { return 1; }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> lock(mutex);
    auto after = pinned.upper_bound(static_cast<const char*>(data));
    return after != pinned.begin() && data < std::prev(after)->first + std::prev(after)->second;
  }
};

static_assert(sizeof(Hooks) == sizeof(at::CUDAHooksInterface));

}  // namespace

// torch makes its hooks once, when it first asks for them, so these take their place in memory.
extern "C" void pretend(bool on) {
  auto* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  if (on)
    new (hooks) Hooks;
  else
    new (hooks) at::CUDAHooksInterface;
  impl::device_guard_impl_registry[static_cast<size_t>(CUDA)].store(on ? &guard : nullptr);
  torch::utils::set_requires_device_init(CUDA, !on);
}
