// How a reply is decoded: how its tokens are chosen, and where it ends.

import { Json } from "./json";
import { PredOptions, Sampling } from "./pred";

/** How a `Session` decodes a reply: the best token each time, until the model ends the text. */
export class Plan {
  /** Texts that end it, and are no part of it. */
  stops: Array<string> = [];
  /**
   * Exactly as many tokens as given, whatever they say: neither the model's end of a text nor a text
   * to stop at counts. For measurements, where lengths have to be equal.
   */
  exact: bool = false;
  /** 0 or less: the best token each time. */
  temperature: f64 = 0;
  topK: i32 = 0;
  topP: f64 = 1;
  minP: f64 = 0;
  /** Where the noise comes from; without it, drawn by the server. */
  seed: u64 = 0;
  seeded: bool = false;

  constructor(
    /** How many tokens at most. */
    public maxTokens: i32,
  ) {}

  /**
   * What an input asks for: how many tokens under the name `tokens`, and `temperature`, `top_k`,
   * `top_p`, `min_p`, `seed`, `stop` (texts) and `ignore_eos` (which is `exact`).
   */
  static of(job: Json, tokens: string, count: i32): Plan {
    const plan = new Plan(job.integerOr(tokens, count) as i32);
    plan.temperature = job.numberOr("temperature", 0);
    plan.topK = job.integerOr("top_k", 0) as i32;
    plan.topP = job.numberOr("top_p", 1);
    plan.minP = job.numberOr("min_p", 0);
    const seed = job.get("seed");
    if (seed !== null) plan.withSeed(seed.integer() as u64);
    plan.stops = job.stringsOr("stop", []);
    plan.exact = job.booleanOr("ignore_eos", false);
    return plan;
  }

  /** Draws with this temperature. */
  withTemperature(temperature: f64): Plan {
    this.temperature = temperature;
    return this;
  }

  /** Draws with this seed. */
  withSeed(seed: u64): Plan {
    this.seed = seed;
    this.seeded = true;
    return this;
  }

  /** Stops before this text, too. */
  stop(text: string): Plan {
    this.stops.push(text);
    return this;
  }

  /** The same plan for one of several branches: where there is a seed, each number gives another. */
  branch(number: i32): Plan {
    const plan = new Plan(this.maxTokens);
    plan.stops = this.stops.slice();
    plan.exact = this.exact;
    plan.temperature = this.temperature;
    plan.topK = this.topK;
    plan.topP = this.topP;
    plan.minP = this.minP;
    // The golden ratio's odd multiple keeps neighbours' seeds far apart.
    if (this.seeded) plan.withSeed(this.seed + ((number + 1) as u64) * 0x9e3779b97f4a7c15);
    return plan;
  }

  /** How the token is drawn; null for the best one. */
  sampling(): Sampling | null {
    if (this.temperature <= 0) return null;
    const sampling = new Sampling().withTemperature(this.temperature);
    if (this.topK > 0) sampling.withTopK(this.topK);
    if (this.topP < 1) sampling.withTopP(this.topP);
    if (this.minP > 0) sampling.withMinP(this.minP);
    if (this.seeded) sampling.withSeed(this.seed);
    return sampling;
  }

  /** New options of a pass that chooses so. */
  options(): PredOptions {
    const sampling = this.sampling();
    return sampling === null ? new PredOptions() : new PredOptions().sample(sampling);
  }
}
