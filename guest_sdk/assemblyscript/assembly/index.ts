// Everything a program needs; the raw calls are in `symphony-lip/assembly/raw`.

export * from "./constraint";
export * from "./errno";
export * from "./generation";
export * from "./http";
export * from "./json";
export * from "./kv";
export * from "./model";
export * from "./msgpack";
export * from "./object";
export * from "./pred";
export * from "./process";
export * from "./request";
export * from "./sampling";
export * from "./serve";
export * from "./session";
export * from "./stream";
export * from "./tickets";
export * from "./tool";
export * from "./utf8";
