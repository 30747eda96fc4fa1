// stamm::direct: an activation on a CPU, forward and backward, as one call from Python.
//
// It checks layouts, allocates the results, calls the passes of a generated kernel and records the
// derivative. What it does not support goes to operations of Python (direct.py), which do.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

using at::Tensor;
using at::TensorList;
using torch::autograd::variable_list;
using Doubles = std::vector<double>;

struct Strided {
  void* data;
  int64_t row_step, column_step;
};
using Pass = void (*)(const Strided*, const Strided*, int64_t, int64_t, const double*, double*,
                      double*, int);
constexpr at::ScalarType stored_types[] = {at::kFloat, at::kBFloat16, at::kHalf};  // as STORED
enum Layout { plain, apart, gate_first, up_first, interleaved };

// A form of `operation.py` for inputs of one dtype.
struct Kernel {
  Pass forward, backward;
  std::string form;
  Layout layout;
  at::ScalarType stored;  // what the passes read and write
  bool single;  // computed in float32
  int64_t chunk;
};
std::deque<Kernel> kernels;  // entries do not move
std::mutex adding;           // threads add kernels while others call
c10::Allocator* results = nullptr;  // for tensors of `results_from` bytes or more; null: torch's own
int64_t results_from = 0;

const Kernel& kernel_of(int64_t index) {
  const std::lock_guard<std::mutex> lock(adding);
  TORCH_CHECK(index >= 0 && index < static_cast<int64_t>(kernels.size()),
              "stamm::direct: no kernel has the number ", index);
  return kernels[index];
}

// How the inputs lie: one row of them all, or rows of gate and up in one tensor.
struct Shape {
  int64_t rows = 1, columns = 0;
};

bool is_plain(const Tensor& t) {
  using K = c10::DispatchKey;
  constexpr c10::DispatchKeySet known({K::CPU, K::ADInplaceOrView, K::AutogradCPU, K::AutocastCPU});
  return t.is_cpu() && t.layout() == at::kStrided && (t.key_set() | known) == known &&
         !t._fw_grad(0).defined();
}

// Whether element i of both, counted in memory, is the same element.
bool lies_like(const Tensor& t, const Tensor& first) {
  return first.is_contiguous() ? t.is_contiguous() : t.strides() == first.strides();
}

bool is_supported(const Kernel& kernel, TensorList inputs, TensorList stored) {
  const Tensor& first = inputs[0];
  for (const Tensor& t : inputs)
    if (!is_plain(t) || t.scalar_type() != kernel.stored || t.sizes() != first.sizes() ||
        !lies_like(t, first))
      return false;
  for (const Tensor& p : stored)
    if (!is_plain(p) || p.numel() != 1 ||
        (p.scalar_type() != at::kFloat && p.scalar_type() != at::kDouble))
      return false;
  if (first.is_contiguous()) return true;
  return kernel.layout <= apart && first.is_non_overlapping_and_dense();
}

// Whether `weight` has the shape of the result: `x.data = ...` may have changed a saved leaf.
bool has_result_shape(const Kernel& kernel, const Tensor& weight, const Tensor& first) {
  if (kernel.layout <= apart) return weight.sizes() == first.sizes();
  return weight.dim() == first.dim() && 2 * weight.size(-1) == first.size(-1) &&
         weight.sizes().slice(0, weight.dim() - 1) == first.sizes().slice(0, first.dim() - 1);
}

Shape shape_of(const Kernel& kernel, const Tensor& first) {
  if (kernel.layout <= apart) return {1, first.numel()};
  const int64_t columns = first.size(-1) / 2;
  return {columns == 0 ? 0 : first.numel() / (2 * columns), columns};
}

// The tensors that the passes see: gate and up where one tensor holds both.
void add(const Kernel& kernel, const Tensor& t, int64_t columns, std::vector<Strided>& to) {
  char* data = static_cast<char*>(t.data_ptr());
  const int64_t size = t.element_size();
  switch (kernel.layout) {
    case plain:
    case apart:
      to.push_back({data, columns, 1});
      return;
    case interleaved:
      to.push_back({data, 2 * columns, 2});
      to.push_back({data + size, 2 * columns, 2});
      return;
    default: {
      const int64_t gate = kernel.layout == gate_first ? 0 : columns * size;
      to.push_back({data + gate, 2 * columns, 1});
      to.push_back({data + (columns * size - gate), 2 * columns, 1});
    }
  }
}

// An uninitialised tensor of the layout of `like`, or its halves' where it holds gate and up.
Tensor fresh(const Kernel& kernel, const Tensor& like, bool half) {
  std::vector<int64_t> sizes = like.sizes().vec();
  if (half) sizes.back() /= 2;
  int64_t bytes = like.element_size();
  for (const int64_t size : sizes) bytes *= size;
  c10::Allocator* allocator =
      results != nullptr && bytes >= results_from ? results : c10::GetCPUAllocator();
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  if (like.is_contiguous())
    return at::detail::empty_generic(sizes, allocator, keys, like.scalar_type(), std::nullopt);
  return at::detail::empty_strided_generic(sizes, like.strides(), allocator, keys,
                                           like.scalar_type());
}

void run(const Kernel& kernel, Pass pass, const std::vector<Strided>& in,
         const std::vector<Strided>& out, Shape shape, const Doubles& effective, Doubles& sums) {
  const int64_t count = shape.rows * shape.columns;
  if (count == 0) return;
  const int64_t chunks = (count + kernel.chunk - 1) / kernel.chunk;
  std::unique_ptr<double[]> partial(new double[chunks * sums.size() + 1]);
  pass(in.data(), out.data(), shape.rows, shape.columns, effective.data(), sums.data(),
       partial.get(), at::get_num_threads());
}

Tensor number_like(const Tensor& stored, double value) {
  Tensor number = at::detail::empty_generic(stored.sizes(), c10::GetCPUAllocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::CPU),
                                           stored.scalar_type(), std::nullopt);
  if (stored.scalar_type() == at::kFloat)
    *static_cast<float*>(number.data_ptr()) = static_cast<float>(value);
  else
    *static_cast<double*>(number.data_ptr()) = value;
  return number;
}

Tensor forward_of(const Kernel& kernel, TensorList inputs, const Doubles& effective) {
  const Shape shape = shape_of(kernel, inputs[0]);
  Tensor result = fresh(kernel, inputs[0], kernel.layout > apart);
  std::vector<Strided> in;
  for (const Tensor& t : inputs) add(kernel, t, shape.columns, in);
  Doubles none;
  run(kernel, kernel.forward, in, {{result.data_ptr(), shape.columns, 1}}, shape, effective, none);
  return result;
}

template <class R, class... A>
R python(const char* name, A... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<R(A...)>().call(arguments...);
}

struct Direct : torch::autograd::Function<Direct> {
  static Tensor forward(torch::autograd::AutogradContext* context, TensorList inputs,
                        TensorList stored, const Doubles& effective, const Doubles& slopes,
                        int64_t index) {
    variable_list saved(inputs.begin(), inputs.end());
    saved.insert(saved.end(), stored.begin(), stored.end());
    context->save_for_backward(std::move(saved));
    // One list: effective values, then row by row their slopes in the stored numbers.
    Doubles numbers = effective;
    numbers.insert(numbers.end(), slopes.begin(), slopes.end());
    context->saved_data["numbers"] = std::move(numbers);
    context->saved_data["kernel"] = index;
    return forward_of(kernel_of(index), inputs, effective);
  }

  static variable_list backward(torch::autograd::AutogradContext* context, variable_list weights) {
    const int64_t index = context->saved_data["kernel"].toInt();
    const Kernel& kernel = kernel_of(index);
    const variable_list saved = context->get_saved_variables();
    const size_t given = kernel.layout == apart ? 2 : 1, count = saved.size() - given;
    const TensorList inputs(saved.data(), given), stored(saved.data() + given, count);
    const Doubles numbers = context->saved_data["numbers"].toDoubleVector();
    const Doubles effective(numbers.begin(), numbers.begin() + count);
    Tensor weight = weights[0];
    variable_list results;
    if (at::GradMode::is_enabled() || !is_plain(weight) || !is_supported(kernel, inputs, stored) ||
        !has_result_shape(kernel, weight, inputs[0])) {
      results = python<variable_list, const Tensor&, TensorList, TensorList, int64_t>(
          "stamm::direct_gradients", weight, inputs, stored, index);
    } else {
      const Tensor& first = inputs[0];
      const Shape shape = shape_of(kernel, first);
      const bool half = kernel.layout > apart;
      if (weight.scalar_type() != first.scalar_type()) weight = weight.to(first.scalar_type());
      if (!lies_like(weight, first))
        weight = fresh(kernel, first, half).copy_(weight);
      std::vector<Strided> in{{weight.data_ptr(), shape.columns, 1}}, out;
      for (const Tensor& t : inputs) {
        add(kernel, t, shape.columns, in);
        results.push_back(fresh(kernel, t, false));
        add(kernel, results.back(), shape.columns, out);
      }
      Doubles sums(count, 0.0);
      run(kernel, kernel.backward, in, out, shape, effective, sums);
      bool finite = true;
      for (const double sum : sums) finite &= std::isfinite(sum);
      if (!finite && kernel.single) {  // perhaps by overflow of float32
        variable_list values;
        for (const double value : effective) values.push_back(at::scalar_tensor(value, at::kDouble));
        const variable_list again =
            python<variable_list, const Tensor&, TensorList, TensorList, c10::string_view>(
                "stamm::activation_gradients", weight, inputs, values, kernel.form);
        for (size_t i = 0; i < count; ++i) sums[i] = again[given + i].item<double>();
      }
      for (size_t j = 0; j < count; ++j) {
        double total = 0;
        for (size_t i = 0; i < count; ++i) {
          const double slope = numbers[count + i * count + j];
          if (i == j || slope != 0) total += sums[i] * slope;  // an infinite sum of another adds no NaN
        }
        results.push_back(number_like(stored[j], total));
      }
    }
    results.resize(saved.size() + 3);  // numbers have no gradient
    return results;
  }
};

Tensor direct(TensorList inputs, TensorList stored, c10::ArrayRef<double> effective,
              c10::ArrayRef<double> slopes, int64_t index) {
  const Kernel& kernel = kernel_of(index);
  TORCH_CHECK(inputs.size() == (kernel.layout == apart ? 2 : 1), "stamm::direct: ", inputs.size(),
              " inputs");
  if (!is_supported(kernel, inputs, stored))
    return python<Tensor, TensorList, TensorList, c10::ArrayRef<double>, int64_t>(
        "stamm::direct_any", inputs, stored, effective, index);
  bool followed = false;
  if (at::GradMode::is_enabled()) {
    for (const Tensor& t : inputs) followed |= t.requires_grad();
    for (const Tensor& t : stored) followed |= t.requires_grad();
  }
  const Doubles values = effective.vec();
  if (!followed) return forward_of(kernel, inputs, values);
  return Direct::apply(inputs, stored, values, slopes.vec(), index);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(stamm, library) {
  library.def("direct(Tensor[] inputs, Tensor[] stored, float[] effective, float[] slopes, int kernel)"
              " -> Tensor",
              torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, TORCH_FN(direct)));
}

extern "C" void add_kernel(Pass forward, Pass backward, const char* form, int layout, int stored,
                           int single, int64_t chunk, int64_t* index) {
  const std::lock_guard<std::mutex> lock(adding);
  *index = static_cast<int64_t>(kernels.size());
  kernels.push_back({forward, backward, form, static_cast<Layout>(layout), stored_types[stored],
                     single != 0, chunk});
}

extern "C" void set_results_allocator(size_t address, int64_t from) {
  results = reinterpret_cast<c10::Allocator*>(address);
  results_from = from;
}
