// A device that PyTorch takes for an accelerator, and that is this process's own memory. tests/device/__init__.py
// compiles it and says what it is for.
//
// Work is done at once, so what is checked is the order: every stream has a vector clock, as race detectors have, and
// every piece of memory remembers which streams have read and written it. Whoever uses memory without having waited for
// those before makes a fault: the operation raises, and the fault stays in a list that tests look at in the end.
// Copies to pinned memory arrive when the host waits for them, and not before.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr int POISON = 0xff; // not a number, in every floating-point type

// ---- clocks ----

using Key = int64_t; // a stream of a device
using Clock = std::map<Key, int64_t>;
constexpr Key HOST = -1;

Key key_of(const Stream& stream) {
  return (static_cast<Key>(stream.device_index()) << 32) | stream.id();
}

std::string name_of(Key key) {
  return "stream " + std::to_string(key & 0xffffffff) + " of device " + std::to_string(key >> 32);
}

void merge(Clock& into, const Clock& from) {
  for (auto& [key, number] : from) {
    auto& known = into[key];
    known = std::max(known, number);
  }
}

struct Access {
  int64_t low, high;
  Key stream;
  int64_t number;
  bool write;
  std::string what;
};

struct Memory {
  size_t nbytes = 0;
  Key stream = 0; // on which it was allocated
  std::vector<Access> accesses;
  std::set<Key> recorded; // record_stream was called for these
};

struct Delivery { // a copy to pinned memory that the host has not waited for
  Key stream;
  int64_t number;
  char* to;
  std::string bytes;
};

struct Borrowed { // pinned memory that a copy reads from, until the host has waited for it
  Key stream;
  int64_t number;
  const char* from;
  std::string bytes;
};

struct Event {
  Key stream = 0;
  Clock clock;
};

std::recursive_mutex lock;

// Python's, without its headers. torch calls some functions here with the GIL and others without, and what runs under the
// lock may need the GIL: so nobody waits for the lock while holding it.
extern "C" {
int PyGILState_Check();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
int Py_IsInitialized();
}

// Python ends a thread that asks for the GIL while the interpreter is taken down, here mostly torch's thread for gradients,
// and its end meets destructors that let nothing through. Such a thread waits for the process to end, as from Python 3.14.
const std::terminate_handler before_us = std::set_terminate([] {
  while (!Py_IsInitialized())
    pause();
  before_us();
});

struct Guard {
  explicit Guard(std::recursive_mutex& mutex) : mutex_(mutex) {
    if (mutex_.try_lock())
      return;
    void* python = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    mutex_.lock();
    if (python)
      PyEval_RestoreThread(python);
  }
  ~Guard() { mutex_.unlock(); }
  Guard(const Guard&) = delete;
  std::recursive_mutex& mutex_;
};
std::map<Key, Clock> clocks; // what is done before whatever is put on a stream next; of HOST, what it has waited for
std::map<const char*, Memory> memories, pinned;
std::vector<Delivery> deliveries;
std::vector<Borrowed> borrowed;
std::vector<std::string> faults;
std::map<std::string, int64_t> counts; // of what tests want to know was done
int64_t streams = 0;

thread_local DeviceIndex current = 0;
thread_local std::map<DeviceIndex, int64_t> current_stream;
thread_local int inside = 0; // a fallback, whose copies are no copies of the user's
thread_local std::string doing;

DeviceIndex device_count() {
  const char* given = std::getenv("STANDIN_DEVICES");
  return static_cast<DeviceIndex>(given ? std::atoi(given) : 2);
}

Stream stream_now(DeviceIndex index) {
  return Stream(Stream::UNSAFE, Device(KIND, index), current_stream[index]);
}

void fault(const std::string& text) {
  faults.push_back(text);
  TORCH_CHECK(false, text);
}

std::map<const char*, Memory>::iterator holding(std::map<const char*, Memory>& all, const void* pointer) {
  auto found = all.upper_bound(static_cast<const char*>(pointer));
  if (found == all.begin())
    return all.end();
  --found;
  return static_cast<const char*>(pointer) < found->first + std::max<size_t>(found->second.nbytes, 1) ? found : all.end();
}

// The bytes between which a tensor lies.
std::pair<int64_t, int64_t> extent(const at::Tensor& tensor) {
  if (!tensor.numel())
    return {0, 0};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); i++)
    last += (tensor.size(i) - 1) * tensor.stride(i);
  int64_t low = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return {low, low + (last + 1) * static_cast<int64_t>(tensor.itemsize())};
}

// Something is put on a stream; its number there.
int64_t put(Key stream) {
  merge(clocks[stream], clocks[HOST]); // the host put it there after all it has waited for
  return ++clocks[stream][stream];
}

// What is put on a stream uses this memory: that must come after those before.
void use(const at::Tensor& tensor, Key stream, int64_t number, bool write) {
  auto [low, high] = extent(tensor);
  if (low == high)
    return;
  auto found = memories.find(static_cast<const char*>(tensor.storage().data()));
  TORCH_INTERNAL_ASSERT(found != memories.end());
  auto& memory = found->second;
  auto& clock = clocks[stream];
  std::vector<Access> left;
  for (auto& access : memory.accesses) {
    bool apart = access.high <= low || high <= access.low;
    if (!apart && (write || access.write) && clock[access.stream] < access.number)
      fault(std::string("a stand-in device: ") + (write ? "writing" : "reading") + " on " + name_of(stream) + " (" + doing +
            ") what " + name_of(access.stream) + " " + (access.write ? "writes" : "reads") + " (" + access.what +
            "), without having waited for it");
    bool covered = low <= access.low && access.high <= high && (write || (!access.write && access.stream == stream));
    if (!covered)
      left.push_back(access);
  }
  left.push_back({low, high, stream, number, write, doing});
  memory.accesses = std::move(left);
}

// The host has waited for all of this: what was to arrive in pinned memory is there.
void host_waits(const Clock& clock) {
  merge(clocks[HOST], clock);
  auto done = [&](Key stream, int64_t number) { return clocks[HOST][stream] >= number; };
  std::vector<Delivery> later;
  for (auto& delivery : deliveries)
    if (done(delivery.stream, delivery.number))
      std::memcpy(delivery.to, delivery.bytes.data(), delivery.bytes.size());
    else
      later.push_back(std::move(delivery));
  deliveries = std::move(later);
  std::vector<Borrowed> still;
  std::string changed;
  for (auto& loan : borrowed)
    if (!done(loan.stream, loan.number))
      still.push_back(std::move(loan));
    else if (std::memcmp(loan.from, loan.bytes.data(), loan.bytes.size()))
      changed = "a stand-in device: pinned memory was changed while " + name_of(loan.stream) + " copies from it";
  borrowed = std::move(still);
  if (!changed.empty())
    fault(changed);
}

// ---- memory ----

void release(void* pointer) {
  Guard guard(lock);
  auto found = memories.find(static_cast<char*>(pointer));
  auto& memory = found->second;
  auto& clock = clocks[memory.stream];
  merge(clock, clocks[HOST]);
  for (auto& access : memory.accesses) // the next owner is on the stream that it was allocated on
    if (clock[access.stream] < access.number && !memory.recorded.count(access.stream))
      faults.push_back("a stand-in device: memory of " + name_of(memory.stream) + " was freed while " + name_of(access.stream) +
                       " uses it (" + access.what + "); record_stream was not called");
  std::memset(pointer, POISON, memory.nbytes);
  memories.erase(found);
  std::free(pointer);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    Guard guard(lock);
    Device device(KIND, current);
    auto* pointer = static_cast<char*>(std::aligned_alloc(64, (std::max<size_t>(nbytes, 1) + 63) / 64 * 64));
    std::memset(pointer, POISON, nbytes);
    auto& memory = memories[pointer];
    memory.nbytes = nbytes;
    memory.stream = key_of(stream_now(current));
    return {pointer, pointer, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};

void release_pinned(void* pointer) {
  Guard guard(lock);
  auto* bytes = static_cast<char*>(pointer);
  auto within = [&](const char* place) { return bytes <= place && place < bytes + std::max<size_t>(pinned[bytes].nbytes, 1); };
  // As torch does: it stays until copies from and to it are done. Nobody can see it any more, so nothing is left to do.
  std::erase_if(deliveries, [&](auto& delivery) { return within(delivery.to); });
  std::erase_if(borrowed, [&](auto& loan) { return within(loan.from); });
  pinned.erase(bytes);
  std::free(pointer);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    Guard guard(lock);
    auto* pointer = static_cast<char*>(std::aligned_alloc(64, (std::max<size_t>(nbytes, 1) + 63) / 64 * 64));
    std::memset(pointer, POISON, nbytes);
    pinned[pointer].nbytes = nbytes;
    counts["pinned"]++;
    return {pointer, pointer, &release_pinned, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};

DeviceAllocator device_allocator;
PinnedAllocator pinned_allocator;

// ---- what torch asks of a device ----

struct StandinGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  Device exchangeDevice(Device device) const override {
    Device before(KIND, current);
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(KIND, current); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < device_count(), "invalid device ordinal ", int(device.index()), " of ", int(device_count()));
    if (device.index() >= 0)
      current = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }

  Stream getStream(Device device) const override { return stream_now(device.index() < 0 ? current : device.index()); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getNewStream(Device device, int) const override {
    Guard guard(lock);
    return Stream(Stream::UNSAFE, Device(KIND, device.index() < 0 ? current : device.index()), ++streams);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream exchangeStream(Stream stream) const override {
    Stream before = stream_now(stream.device_index());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return reinterpret_cast<void*>(key_of(stream)); }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    Guard guard(lock);
    if (!*event)
      *event = new Event();
    auto* known = static_cast<Event*>(*event);
    known->stream = key_of(stream);
    put(known->stream);
    known->clock = clocks[known->stream];
    counts["record"]++;
  }
  void block(void* event, const Stream& stream) const override {
    Guard guard(lock);
    if (event)
      merge(clocks[key_of(stream)], static_cast<Event*>(event)->clock);
    counts["wait"]++;
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryEvent(void* event) const override { // not at the first time
    Guard guard(lock);
    auto* known = static_cast<Event*>(event);
    bool done = !known || clocks[HOST][known->stream] >= known->clock[known->stream];
    if (!done)
      host_waits(known->clock);
    return done;
  }
  void synchronizeEvent(void* event) const override {
    Guard guard(lock);
    if (event)
      host_waits(static_cast<Event*>(event)->clock);
  }
  bool queryStream(const Stream& stream) const override {
    Guard guard(lock);
    bool done = clocks[HOST][key_of(stream)] >= clocks[key_of(stream)][key_of(stream)];
    if (!done)
      host_waits(clocks[key_of(stream)]);
    return done;
  }
  void synchronizeStream(const Stream& stream) const override {
    Guard guard(lock);
    host_waits(clocks[key_of(stream)]);
    counts["synchronize"]++;
  }
  void synchronizeDevice(const DeviceIndex index) const override {
    Guard guard(lock);
    Clock all;
    for (auto& [key, clock] : clocks)
      if (key != HOST && (key >> 32) == index)
        merge(all, clock);
    host_waits(all);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    Guard guard(lock);
    if (auto found = holding(memories, data.get()); found != memories.end())
      found->second.recorded.insert(key_of(stream));
  }
  double elapsedTime(void*, void*, const DeviceIndex) const override { return 1.0; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, StandinGuard);

// Random numbers of a device: the CPU's, with a state of the device's own.
struct StandinGenerator final : at::CPUGeneratorImpl {
  explicit StandinGenerator(DeviceIndex index) : at::CPUGeneratorImpl() {
    device_ = Device(KIND, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator(DeviceIndex index) {
  static std::map<DeviceIndex, at::Generator> all;
  Guard guard(lock);
  DeviceIndex wanted = index < 0 ? current : index;
  if (!all.count(wanted))
    all[wanted] = at::make_generator<StandinGenerator>(wanted);
  return all[wanted];
}

struct StandinHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { StandinGuard().setDevice(Device(KIND, index)); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return StandinGuard().exchangeDevice(Device(KIND, index)).index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchangeDevice(index); }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<StandinGenerator>(index < 0 ? current : index);
  }
  Device getDeviceFromPtr(void*) const override { return Device(KIND, current); }
  bool isPinnedPtr(const void* data) const override {
    Guard guard(lock);
    return holding(pinned, data) != pinned.end();
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    c10::DataPtr bytes = device_allocator.allocate(nbytes);
    std::memcpy(bytes.get(), storage.data(), std::min(nbytes, storage.nbytes()));
    const_cast<c10::Storage&>(storage).set_data_ptr_noswap(std::move(bytes));
    const_cast<c10::Storage&>(storage).unsafeGetStorageImpl()->set_nbytes(nbytes);
  }
};

// ---- operations ----

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(KIND, current)));
  return at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(KIND, current)));
  return at::detail::empty_strided_generic(size, stride, &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the host, for this file only.
at::Tensor bare(const at::Tensor& tensor) {
  if (tensor.device().is_cpu())
    return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  at::Tensor same = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
  return tensor.is_neg() ? same._neg_view() : tensor.is_conj() ? same._conj() : same;
}

void copy_between(const at::Tensor& from, const at::Tensor& to) {
  Guard guard(lock);
  Key reading = key_of(stream_now(from.device().index())), writing = key_of(stream_now(to.device().index()));
  if (reading != writing) { // as CUDA's: both current streams wait for each other
    put(writing);
    merge(clocks[reading], clocks[writing]);
  }
  int64_t number = put(reading);
  use(from, reading, number, false);
  use(to, reading, number, true);
  bare(to).copy_(bare(from));
  if (reading != writing)
    merge(clocks[writing], clocks[reading]);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Guard guard(lock);
  if (doing.empty())
    doing = "copy";
  if (from.device().type() == KIND && to.device().type() == KIND) {
    copy_between(from, to);
  } else if (from.device().type() == KIND) {
    Key stream = key_of(stream_now(from.device().index()));
    int64_t number = put(stream);
    use(from, stream, number, false);
    bool later = non_blocking && to.is_contiguous() && holding(pinned, to.data_ptr()) != pinned.end();
    if (later && to.numel()) {
      at::Tensor values = bare(from).to(to.scalar_type()).contiguous();
      std::string bytes(static_cast<char*>(values.data_ptr()), values.nbytes());
      std::memset(to.data_ptr(), POISON, values.nbytes());
      deliveries.push_back({stream, number, static_cast<char*>(to.data_ptr()), std::move(bytes)});
      counts["to pinned"]++;
    } else {
      to.copy_(bare(from));
      if (!inside)
        host_waits(clocks[stream]);
    }
  } else {
    Key stream = key_of(stream_now(to.device().index()));
    int64_t number = put(stream);
    use(to, stream, number, true);
    if (non_blocking && from.numel() && from.is_contiguous() && holding(pinned, from.data_ptr()) != pinned.end()) {
      auto* bytes = static_cast<const char*>(from.data_ptr());
      borrowed.push_back({stream, number, bytes, std::string(bytes, from.nbytes())});
      counts["from pinned"]++;
    }
    bare(to).copy_(from);
    if (!non_blocking && !inside)
      host_waits(clocks[stream]);
  }
  if (doing == "copy")
    doing.clear();
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar scalar(const at::Tensor& tensor) {
  at::Tensor here = at::empty({}, tensor.options().device(at::kCPU));
  copy_from(tensor.reshape({}), here, false);
  return here.item();
}

struct Inside {
  std::string before = doing;
  explicit Inside(const char* what) {
    doing = what;
    inside++;
  }
  ~Inside() {
    inside--;
    doing = before;
  }
};

// Everything else: copied to the host, computed there, and what was changed copied back, on the current stream.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& arguments = op.schema().arguments();
  std::optional<at::Generator> of_device, of_host;
  std::optional<c10::Device> where;
  for (size_t i = 0; i < arguments.size(); i++) {
    auto& value = torch::jit::peek(*stack, i, arguments.size());
    if (!where && value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == KIND)
      where = value.toTensor().device();
    if (!where && value.isTensorList() && !value.toTensorList().empty() && value.toTensorVector()[0].device().type() == KIND)
      where = value.toTensorVector()[0].device();
  }
  c10::OptionalDeviceGuard guard(where);
  for (size_t i = 0; i < arguments.size(); i++)
    if (arguments[i].name() == "generator") {
      auto& value = torch::jit::peek(*stack, i, arguments.size());
      of_device = value.isGenerator() ? value.toGenerator() : default_generator(-1);
      of_host = at::make_generator<at::CPUGeneratorImpl>();
      of_host->set_state(of_device->get_state());
      value = *of_host;
    }
  {
    Inside here(op.schema().name().c_str());
    at::native::cpu_fallback(op, stack);
  }
  if (of_host)
    of_device->set_state(of_host->get_state());
}

// Convolutions, which torch asks devices for under other names than the CPU's.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  Inside here("convolution");
  std::optional<at::Tensor> added;
  if (bias && bias->defined())
    added = bias->cpu();
  return at::convolution(input.cpu(), weight.cpu(), added, stride, padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  Inside here("convolution_backward");
  c10::IntArrayRef channels(grad.sizes().data() + 1, 1);
  auto [a, b, c] = at::convolution_backward(grad.cpu(), input.cpu(), weight.cpu(), channels, stride, padding, dilation,
                                            transposed, output_padding, groups, wanted);
  auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(a), back(b), back(c)};
}

// Its statistics are changed in place, which its schema does not say.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double eps) {
  Inside here("native_batch_norm");
  auto there = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<at::Tensor>(tensor->cpu()) : std::nullopt;
  };
  auto means = there(mean), variances = there(variance);
  auto [a, b, c] = at::native_batch_norm(input.cpu(), there(weight), there(bias), means, variances, training, momentum, eps);
  if (training && means) {
    mean->copy_(*means);
    variance->copy_(*variances);
  }
  return {a.to(input.device()), b.to(input.device()), c.to(input.device())};
}

void record_stream(at::Tensor& tensor, Stream stream) {
  StandinGuard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

// ---- for tests ----

std::vector<std::string> take_faults() {
  Guard guard(lock);
  std::vector<std::string> all;
  all.swap(faults);
  return all;
}

int64_t count(std::string what) {
  Guard guard(lock);
  return counts[what];
}

at::Tensor rng_state(int64_t index) { return default_generator(static_cast<DeviceIndex>(index)).get_state(); }
void set_rng_state(const at::Tensor& state, int64_t index) {
  at::Generator generator = default_generator(static_cast<DeviceIndex>(index));
  generator.set_state(state);
}
void seed(int64_t number, int64_t index) {
  at::Generator generator = default_generator(static_cast<DeviceIndex>(index));
  generator.set_current_seed(static_cast<uint64_t>(number));
}
int64_t current_device() { return current; }

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", scalar);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("native_batch_norm", batch_norm);
  m.impl("record_stream", record_stream);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough()); // autocast changes nothing
}

TORCH_LIBRARY(standin, m) {
  m.def("take_faults() -> str[]", take_faults);
  m.def("count(str what) -> int", count);
  m.def("rng_state(int index) -> Tensor", rng_state);
  m.def("set_rng_state(Tensor state, int index) -> ()", set_rng_state);
  m.def("seed(int number, int index) -> ()", seed);
  m.def("current_device() -> int", current_device);
  m.def("device_count() -> int", [] { return int64_t(device_count()); });
}

static StandinHooks hooks;
static bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(KIND, &device_allocator);
  return true;
}();
