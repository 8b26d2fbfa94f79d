// infer(): from the handles to a job. What is wrong is answered by a code; what the device would nevertheless be able
// to run is kept, because a device may start what the runtime refuses (facts submit_error_ and busy_starts_nothing).
#include <time.h>

#include <algorithm>

#include "card.hpp"
#include "model.hpp"

namespace calrt::sim {

namespace {

constexpr std::int64_t permille = 1000, us_ns = 1000;
constexpr std::int64_t longest_compute_us = std::int64_t{1} << 40;  // twelve days: no sum or product of times wraps

// What a tensor's mapping and slice say about host memory. False: the slice leaves the mapped memory.
bool host_range(const TensorInfo& tensor, const Mapping& mapping, Range* range, std::uint64_t* offset_bytes) {
    const std::uint64_t element = element_bytes(tensor.dtype);
    *offset_bytes = mapping.sliced ? mapping.offset * element : 0;
    const std::uint64_t bytes = mapping.sliced ? mapping.size * element : tensor.byte_size;
    if (*offset_bytes > mapping.host.bytes || bytes > mapping.host.bytes - *offset_bytes) return false;
    *range = {mapping.host.host + *offset_bytes, bytes};
    return true;
}

ReturnCode add_ranges(const Buffer& buffer, Job* job) {
    const Model& model = buffer.calbin->models[buffer.model];
    const Graph& graph = buffer.calbin->graphs[buffer.model];
    for (std::size_t i = 0; i < model.tensors.size(); ++i) {
        if (model.tensors[i].is_output != buffer.is_output) continue;
        if (!buffer.tensors[i].mapped) return IllegalValue;
        Range range;
        std::uint64_t offset = 0;
        if (!host_range(model.tensors[i], buffer.tensors[i], &range, &offset)) return OutOfRange;
        if (buffer.is_output) {
            job->host_out = range;
            job->out_offset = offset;
        } else {
            job->inputs.push_back({graph.roles[i], range, 0, false, {}});
        }
    }
    return CalrtSuccess;
}

// Tokens of this call: what the position slice holds, and the other input as well.
ReturnCode count_tokens(const Model& model, const Graph& graph, Job* job) {
    std::uint64_t counts[2] = {0, 0};
    for (const JobInput& input : job->inputs) {
        std::uint64_t token_bytes = element_bytes(PrimitiveType::kS32);
        if (input.role == TensorRole::embeds) {
            const auto i = std::find(graph.roles.begin(), graph.roles.end(), TensorRole::embeds) - graph.roles.begin();
            const TensorInfo& tensor = model.tensors[static_cast<std::size_t>(i)];
            token_bytes = tensor.shape.back() * element_bytes(tensor.dtype);
        }
        if (input.host.bytes % token_bytes != 0) return WrongShape;
        counts[input.role == TensorRole::positions] = input.host.bytes / token_bytes;
    }
    if (counts[0] != counts[1]) return WrongShape;
    if (counts[0] == 0 || counts[0] > model.max_seq) return OutOfRange;
    job->tokens = static_cast<std::uint32_t>(counts[0]);
    return CalrtSuccess;
}

std::int64_t jittered(const Card& card, std::int64_t us, std::uint64_t job, std::uint64_t phase) {
    const std::int64_t range = card.settings[Key::jitter_permille];
    if (range == 0) return us;
    const auto seed = static_cast<std::uint64_t>(card.settings[Key::jitter_seed]);
    const std::uint64_t random = mix64(seed ^ mix64(job * 4 + phase));
    const std::int64_t by = static_cast<std::int64_t>(random % static_cast<std::uint64_t>(2 * range + 1)) - range;
    return us * (permille + by) / permille;
}

void set_latency(const Card& card, ModelKind kind, Job* job) {
    const Settings& settings = card.settings;
    const std::int64_t prefill_us =
        settings[Key::prefill_us] + job->tokens * settings[Key::prefill_token_ns] / us_ns;
    const std::int64_t compute_us = kind == ModelKind::Decode ? settings[Key::decode_us] : prefill_us;
    job->h2d_us = jittered(card, settings[Key::h2d_us], job->id, 0);
    job->compute_us = jittered(card, std::min(compute_us, longest_compute_us), job->id, 1);
    job->d2h_us = jittered(card, settings[Key::d2h_us], job->id, 2);
    if (job->fault.action == Action::late) job->compute_us += job->fault.a;
    job->pieces = static_cast<std::uint32_t>(settings[Key::pieces]);
}

void take_checksums(Job* job) {
    for (JobInput& input : job->inputs) {
        input.data.resize(input.host.bytes);
        input.summed = checksum_host(input.host, &input.sum);
    }
}

void report_reuse(Card& card, const Job& job) {
    std::vector<Range> ranges = {job.host_out};
    for (const JobInput& input : job.inputs) ranges.push_back(input.host);
    for (const Range& range : ranges) {
        if (const Job* other = card.live_overlap(range, &job)) {
            card.violation(ViolationKind::reused, other->id, "infer() was given memory of a job in flight");
            return;
        }
    }
}

void haunt(const Card& card, Job* job) {
    constexpr std::int64_t second_ns = 1000000000;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const std::int64_t begin_ns = now.tv_sec * second_ns + now.tv_nsec + (job->h2d_us + job->compute_us) * us_ns;
    Range output = job->host_out;
    if (job->fault.action == Action::short_tensor) {
        output.bytes = std::min(output.bytes, static_cast<std::uint64_t>(job->fault.a));
    }
    job->ghost = card.stepped() ? start_ghost(output, job->pieces, 0, 0)
                                : start_ghost(output, job->pieces, begin_ns, job->d2h_us * us_ns);
}

// Hands the job to the device. engine -1: it waits for one.
void launch(Card& card, std::unique_ptr<Job> job, int engine, bool unseen) {
    job->engine = engine;
    job->unseen = unseen;
    job->generation = card.generation;
    set_latency(card, job->calbin->graphs[job->model].kind, job.get());
    if (!card.settings.on(Key::mutant_no_checksum)) take_checksums(job.get());
    for (JobInput& input : job->inputs) input.data.resize(input.host.bytes);
    report_reuse(card, *job);
    if (!card.settings.on(Key::process_exit_stops_dma)) haunt(card, job.get());
    card.ensure_engine();
    card.start(std::move(job), card.now_us());
}

}  // namespace

Draft draft_job(Card& card, const std::shared_ptr<Buffer>& input, const std::shared_ptr<Buffer>& output) {
    if (input->model != output->model || input->calbin != output->calbin) return {WrongShape, nullptr};
    const Model& model = input->calbin->models[input->model];
    const Graph& graph = input->calbin->graphs[input->model];
    if (graph.kind == ModelKind::Vision) return {Unsupported, nullptr};
    auto job = std::make_unique<Job>();
    job->input = input;
    job->output = output;
    job->calbin = input->calbin;
    job->model = input->model;
    ReturnCode code = add_ranges(*input, job.get());
    if (code == CalrtSuccess) code = add_ranges(*output, job.get());
    if (code == CalrtSuccess) code = count_tokens(model, graph, job.get());
    if (code == CalrtSuccess && !input->sequence) code = IllegalValue;
    if (code != CalrtSuccess) return {code, nullptr};
    // From here on the device could run something, whatever the runtime thinks of it.
    job->sequence = *input->sequence;
    job->cur = input->csr_cur.value_or(job->tokens);
    job->total = input->csr_total.value_or(std::int64_t{card.kv.length(job->sequence)} + job->tokens);
    if (!input->csr_cur || !input->csr_total) return {IllegalValue, std::move(job)};
    if (job->total > card.kv.room(job->sequence)) return {OutOfRange, std::move(job)};
    return {CalrtSuccess, std::move(job)};
}

ReturnCode submit(Card& card, const std::shared_ptr<Buffer>& input, const std::shared_ptr<Buffer>& output,
                  int wanted_engine, const Fault& fault, std::uint64_t* job_id) {
    Draft draft = draft_job(card, input, output);
    const int engine = card.free_engine(wanted_engine);
    const bool full = card.jobs.size() >= jobs_max;
    ReturnCode code = draft.code;
    if (code == CalrtSuccess && wanted_engine > 0 && !card.parallel) code = Unsupported;  // only the first is there
    if (code == CalrtSuccess && (engine < 0 || full)) code = DeviceBusy;
    bool starts = code == CalrtSuccess;
    if (fault.action == Action::return_code) code = static_cast<ReturnCode>(fault.a);
    if (code == DeviceBusy) starts = !card.settings.on(Key::busy_starts_nothing);
    if (code != CalrtSuccess && code != DeviceBusy) starts = !card.settings.on(Key::submit_error_starts_nothing);
    if (fault.action == Action::return_code && fault.b >= 0) starts = fault.b == 1;
    if (!draft.job || full) return code != CalrtSuccess ? code : full ? DeviceBusy : draft.code;
    if (!starts && code != CalrtSuccess) return code;

    std::unique_ptr<Job> job = std::move(draft.job);
    job->id = *job_id = ++card.last_job;
    job->wanted_engine = wanted_engine;
    job->fault = starts ? fault : Fault{Action::hang, 0, 0};  // success was said of a job that nobody started
    launch(card, std::move(job), engine, code != CalrtSuccess);
    if (code == CalrtSuccess) {
        output->job = *job_id;
        output->running = true;
        output->status = BufStatus::RUNNING;
        output->written = 0;
    }
    return code;
}

}  // namespace calrt::sim
